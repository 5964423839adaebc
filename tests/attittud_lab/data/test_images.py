"""Pictures of every mode, depth and orientation become the same pixels."""

import io
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import attittud_lab
from attittud_lab.config.load import loads
from attittud_lab.data.images import WHITES, Pixels, decode
from attittud_lab.data.source import Deep
from attittud_lab.errors import InputError
from attittud_lab.training.train import load_data, run
from tests.helpers.data_files import CASES, damaged

LEVELS = np.array([[0, 40, 80], [120, 160, 200], [220, 240, 255]], dtype=np.uint8)
GREY = LEVELS.repeat(8, 0).repeat(8, 1)
COLOUR = np.stack([GREY, GREY[::-1], GREY.T], 2)


def stored(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    if form == "WEBP":
        options["lossless"] = True
    if form == "JPEG":
        options |= {"quality": 100, "subsampling": 0}
    image.save(file, form, **options)
    return file.getvalue()


def pixels_of(content: bytes | Image.Image | Deep, channels: int = 3) -> npt.NDArray[np.int64]:
    """Return H x W for a grey picture, else H x W x 3."""
    found = decode(content, Pixels(channels, 24), "here").astype(np.int64)
    return found[0] if channels == 1 else found.transpose(1, 2, 0)


WRITTEN = [("1", "PPM"), ("L", "BMP"), ("L", "GIF"), ("LA", "TIFF"), ("P", "PNG"), ("P", "WEBP")]
WRITTEN += [("PA", "TIFF"), ("RGB", "PNG"), ("RGB", "JPEG"), ("RGBA", "PNG"), ("RGBA", "WEBP")]
WRITTEN += [("RGBX", "TIFF"), ("CMYK", "JPEG"), ("YCbCr", "TIFF")]


@pytest.mark.parametrize(("mode", "form"), WRITTEN)
def test_every_mode_that_is_written_is_read(mode, form):
    grey = mode in ("1", "L", "LA")
    image = Image.fromarray(GREY if grey else COLOUR)
    if mode == "PA":
        image = image.convert("P")
    image = image.convert(mode, dither=Image.Dither.NONE)
    wanted = np.asarray(image.convert("RGB")).astype(np.int64)
    found = pixels_of(stored(image, form))
    most = {"GIF": 60, "JPEG": 12}.get(form, 60 if mode == "P" else 2)
    assert np.abs(found - wanted).max() <= most and np.abs(found - wanted).mean() <= most / 4
    if grey:
        assert np.abs(pixels_of(stored(image, form), 1) - wanted[..., 0]).max() <= most


def test_the_colour_of_transparent_pixels_does_not_count():
    """They are laid on white, however the file marks them."""
    left = np.zeros((24, 24), dtype=bool)
    left[:, :12] = True
    grey = np.where(left, 3, 100).astype(np.uint8)
    alpha = Image.fromarray(np.where(left, 0, 255).astype(np.uint8))
    colour = Image.fromarray(np.stack([grey, grey + 50, grey], 2))
    with_alpha = colour.copy()
    with_alpha.putalpha(alpha)
    palette = Image.fromarray(np.where(left, 7, 1).astype(np.uint8)).convert("P")
    palette.putpalette([3] * 3 + [100, 150, 100] + [3] * 18)
    deep = stored(Image.fromarray(grey.astype(np.uint16) * 257), "PNG", transparency=3 * 257)
    of_grey = [
        stored(Image.merge("LA", (Image.fromarray(grey), alpha)), "PNG"),
        stored(Image.fromarray(grey), "PNG", transparency=3),
        Deep(deep, 65535),
    ]
    of_colour = [
        *(stored(with_alpha, form) for form in ("PNG", "WEBP", "TIFF")),
        *(stored(palette, form, transparency=7) for form in ("PNG", "GIF")),
        stored(colour, "PNG", transparency=(3, 53, 3)),
    ]
    for contents, right in ((of_grey, [100] * 3), (of_colour, [100, 150, 100])):
        for content in contents:
            found = pixels_of(content)
            assert (found[:, :11] == 255).all()
            assert np.abs(found[:, 13:] - right).max() <= 3


STORED = {
    1: GREY,
    2: GREY[:, ::-1],
    3: GREY[::-1, ::-1],
    4: GREY[::-1],
    5: GREY.T,
    6: np.rot90(GREY),
    7: GREY[::-1, ::-1].T,
    8: np.rot90(GREY, -1),
}
"""How a camera stores a picture, by the orientation that it writes."""


@pytest.mark.parametrize("orientation", STORED)
def test_a_picture_is_turned_as_its_exif_orientation_says(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(STORED[orientation]))
    content = stored(image, "JPEG", exif=exif)
    for given in (content, Image.open(io.BytesIO(content))):
        assert np.abs(pixels_of(given, 1) - GREY).max() <= 12


def test_a_depth_that_was_never_decided_is_told(caplog):
    """As where only predictions have such pictures: they would be dark without a word."""
    image = Image.fromarray(np.rint(GREY / 255 * 4095).astype(np.uint16))
    assert pixels_of(stored(image, "PNG"), 1).max() == round(GREY.max() / 16)
    assert "more than 8 bits" in caplog.text and "65535 counts as white" in caplog.text
    caplog.clear()
    pixels_of(Deep(stored(image, "PNG"), 4095), 1)
    assert not caplog.text


@pytest.mark.parametrize(
    ("kind", "form"), [(np.uint16, "PNG"), (np.int32, "TIFF"), (np.float32, "TIFF")]
)
@pytest.mark.parametrize("white", WHITES)
def test_deep_pictures_keep_their_levels(kind, form, white):
    image = Image.fromarray(np.rint(GREY / 255 * white).astype(kind))
    assert np.array_equal(pixels_of(Deep(stored(image, form), white), 1), GREY)


@pytest.mark.parametrize("level", [-1, 0.5, np.nan])
def test_grey_levels_without_a_meaning_are_refused(level):
    image = Image.fromarray(np.full((24, 24), level, dtype=np.float32))
    with pytest.raises(InputError, match="grey levels"):
        pixels_of(stored(image, "TIFF"), 1)


def test_size_and_colour_are_decided_from_all_classes(tmp_path):
    """Grey pictures of 16 pixels in the first class made all other pictures grey and small."""
    random_ = np.random.default_rng(0)
    for name, shape in {"a": (16, 16), "b": (64, 64, 3), "c": (64, 64, 3)}.items():
        (tmp_path / name).mkdir()
        for number in range(40):
            picture = Image.fromarray(random_.integers(0, 256, shape, dtype=np.uint8))
            picture.save(tmp_path / name / f"{number}.png")
    job = f"data: {{primary: {{path: {tmp_path}}}}}\nmodel: mlp\nstrategy: primary_only"
    assert load_data(loads(job)).record["image_size"] == [3, 64, 64]


def test_one_value_is_white_in_all_deep_pictures_of_a_source(tmp_path, caplog):
    """Each picture was once scaled by its own maximum, so pictures of the same scene differed."""
    random_ = np.random.default_rng(0)
    for name, highest in {"own": 4000, "other": 60_000}.items():
        for letter in "ab":
            (tmp_path / name / letter).mkdir(parents=True)
            for number, bright in enumerate(np.linspace(200, highest, 10).astype(int)):
                values = random_.integers(0, bright + 1, (16, 16), dtype=np.uint16)
                values[0, 0] = bright
                path = tmp_path / name / letter / f"{number}.png"
                Image.fromarray(values).save(path)
    job = f"data: {{primary: {tmp_path}/own, auxiliary: {{other: {tmp_path}/other}}}}\nmodel: mlp"
    data = load_data(loads(job))
    assert data.record["white"] == {"primary": 4095, "other": 65535}
    assert caplog.text.count("counts as white") == 2
    sets = {"own": data.primary.examples, "other": data.auxiliary["other"].examples}
    for name, white in (("own", 4095), ("other", 65535)):
        wanted = set()
        for path in (tmp_path / name).rglob("*.png"):
            scaled = np.rint(np.asarray(Image.open(path)) * (255 / white))
            wanted.add(scaled.astype(np.uint8).tobytes())
        assert {image.numpy().tobytes() for image in sets[name].inputs} <= wanted


def test_prediction_sees_the_pixels_of_training(tmp_path):
    """Deep, turned and transparent pictures too: the run folder says how they were read."""
    folder = tmp_path / "own"
    random_ = np.random.default_rng(0)
    for name in "ab":
        (folder / name).mkdir(parents=True)
        for number in range(12):
            values = random_.integers(0, 200 + 300 * number, (16, 16), dtype=np.uint16)
            Image.fromarray(values).save(folder / name / f"{number}.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    clear = Image.fromarray(COLOUR)
    clear.putalpha(Image.fromarray(GREY))
    for name, turned, size in (("a", COLOUR[:, ::-1], 20), ("b", COLOUR, 30)):
        Image.fromarray(turned).save(folder / name / "turned.jpg", exif=exif)
        clear.resize((size, size)).save(folder / name / "clear.png")
    source = f"primary: {{path: {folder}, test: 6, overlap: allow}}"
    phase = "{steps: 2, primary_batch: 8}"
    config = loads(
        f"data: {{{source}}}\ntraining: {{mode: joint, guided: {phase}}}\n"
        "model: mlp\nstrategy: primary_only"
    )
    run(config, run_dir=tmp_path / "run")
    data = load_data(config)
    model = attittud_lab.load(tmp_path / "run")
    assert model.about.white == 4095
    paths = sorted(folder.rglob("*.*"))
    rows = data.record["primary"]["test"]["rows"]
    batch = model.batch([paths[row] for row in rows], [str(row) for row in rows])
    assert np.array_equal(batch.examples.inputs.numpy(), data.test.inputs.numpy())


def test_damaged_images_are_refused_with_an_explanation():
    refused = 0
    for case in range(CASES):
        random_ = random.Random(case)
        form = random_.choice(["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
        shape = (random_.randrange(1, 20), 9, 3)
        pixels = np.random.default_rng(case).integers(0, 255, shape, dtype=np.uint8)
        whole = content = stored(Image.fromarray(pixels), form)
        try:
            for _ in range(random_.randrange(3)):
                content = damaged(content, random_)
            assert decode(content, Pixels(3, 6), "here").shape == (3, 6, 6)
        except InputError:
            refused += 1
            if content == whole:
                pytest.fail(f"case {case}")
    assert CASES // 10 < refused < CASES
