"""Pictures of any format as uint8 pixels of one shape, decided once for all pictures and the same
in prediction.

A picture is turned as its EXIF orientation says, cut to the middle square and scaled. Transparent
pixels are laid on white. Nothing in a file says which value is white in a grey picture of more than
8 bits, so that is decided once for each source.
"""

from __future__ import annotations

import io
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from attittud_lab.data.part import Part
from attittud_lab.data.source import Deep, Raw, Rows, check_memory, warn_once
from attittud_lab.data.splits import strata
from attittud_lab.errors import InputError, one_line

LARGEST = 64_000_000
"""The most pixels of an image that is decoded; a file of a few kB can declare billions."""
LOOKED_AT = 256
"""About how many pictures of a part are looked at, the same number of every class."""
WHITES = (255, 1023, 4095, 16383, 65535)
"""The largest grey values of cameras and scanners, with 8 to 16 bits."""
_GROUND = (255, 255, 255, 255)  # transparent pixels are laid on white
_ORIENTATION = 0x0112  # the tag of EXIF
_GREY = ("1", "L", "LA", "La")
_AT_ONCE = 64  # images per task of a thread: decoding a small one is as fast as handing it out
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


@dataclass(frozen=True)
class Pixels:
    """The common shape that every image is scaled to."""

    channels: int
    size: int

    @classmethod
    def common(cls, looks: Sequence[Sequence[tuple[int, bool]]], size: int | None) -> Pixels:
        """Decide the shape from what `look_at` says about each source, the primary one first.

        It is grey only if all pictures are grey. Without a `size` it has the most frequent side of
        the first source, or the larger of two that are equally frequent.
        """
        sides = Counter(side for side, _ in looks[0])
        usual = max(sides, key=lambda side: (sides[side], side))
        channels = 3
        if all(grey for _, grey in chain.from_iterable(looks)):
            channels = 1
        return cls(channels, size or usual)

    def check(self, count: int) -> None:
        """Refuse a size for which `count` images take too much memory, before any is decoded."""
        culprit = f"{count:,} images of {self.size} x {self.size} pixels (data.image_size)"
        check_memory(count * self.channels * self.size**2, culprit, "lower data.image_size")


def look_at(part: Part) -> list[tuple[int, bool]]:
    """Return the shorter side of some pictures of a part, and whether each is grey."""
    where = part.listing.where
    return [_look(raw, where) for raw in part.listing.fetch(part.rows[_sample(part)])]


def _sample(part: Part) -> Rows:
    """Return the positions of about `LOOKED_AT` pictures, at least one of every class, always the
    same ones.
    """
    generator = np.random.default_rng(0)
    classes = strata(part.labels, len(part.rows))
    numbers = np.unique(classes)
    per_class = max(1, LOOKED_AT // max(1, len(numbers)))
    drawn = []
    for number in numbers:
        positions = np.flatnonzero(classes == number)
        drawn.append(generator.permutation(positions)[:per_class])
    return np.sort(np.concatenate(drawn))


def white_of(part: Part) -> int | None:
    """Return the grey value that counts as white in a source, and say it once; None without grey
    pictures of more than 8 bits.

    It is the smallest of `WHITES` that no picture of a sample exceeds, or the largest of them.
    """
    where = part.listing.where
    brightest = 0
    for raw in part.listing.fetch(part.rows[_sample(part)]):
        if isinstance(raw, (bytes, Path)):
            with _open(raw, where) as image:
                if is_deep(image):
                    brightest = max(brightest, int(_levels(image, _name(raw, where)).max()))
    if brightest == 0:
        return None
    white = WHITES[bisect_left(WHITES[:-1], brightest)]
    warn_once(f"{where}: grey pictures of more than 8 bits; {white} counts as white")
    return white


def with_white(part: Part, white: int | None) -> Part:
    """Return a part whose grey pictures of more than 8 bits are read with a value of white."""
    if white is None:
        return part
    fetch = part.listing.fetch
    listing = replace(part.listing, fetch=lambda rows: deep(fetch(rows), white))
    return replace(part, listing=listing)


def deep(raws: Sequence[Any], white: int | None) -> list[Any]:
    """Wrap encoded pictures as `Deep`, so that decoding knows the value of white. Arrays stay as
    they are, since they have 8 bits.
    """
    if white is None:
        return list(raws)
    inputs: list[Any] = []
    for raw in raws:
        if isinstance(raw, np.ndarray):
            inputs.append(raw)
        else:
            inputs.append(Deep(raw, white))
    return inputs


def is_deep(image: Image.Image) -> bool:
    """Return whether this is a grey picture whose pixels may be above 255."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _levels(image: Image.Image, name: str) -> npt.NDArray[np.float64]:
    """Return the values of a grey picture of more than 8 bits; refuses fractions and negative
    ones.
    """
    with _blamed(f"{name} is damaged"):
        levels = np.asarray(image).astype(np.float64)
    if not np.isfinite(levels).all() or levels.min() < 0 or (levels != np.rint(levels)).any():
        problem = f"{name} has grey levels that are no whole numbers from 0 to {WHITES[-1]}"
        raise InputError(f"{problem}; save such pictures with 8 or 16 bits")
    return levels


@contextmanager
def _blamed(problem: str) -> Iterator[None]:
    """Blame errors of pillow inside the block on the image; `problem` begins with its name."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # every format raises its own errors
        raise InputError(f"{problem} ({one_line(error, 200)}); repair or remove it") from None


def _look(raw: Raw | Deep, where: str) -> tuple[int, bool]:
    """Return the shorter side of a picture, and whether it is grey."""
    picture, _ = _unwrapped(raw)
    if isinstance(picture, np.ndarray):
        return min(picture.shape[1:]), picture.shape[0] == 1
    with _open(picture, where) as image:
        return min(image.size), image.mode in _GREY or is_deep(image)


def _unwrapped(raw: Raw | Image.Image | Deep) -> tuple[Any, int | None]:
    """Return an image, and the value of white in it if this was decided."""
    if isinstance(raw, Deep):
        return raw.picture, raw.white
    return raw, None


def _open(raw: Raw, where: str) -> Image.Image:
    """Open an encoded image without decoding it."""
    name = _name(raw, where)
    with _blamed(f"{name} cannot be read as an image"), warnings.catch_warnings():
        # Our own limit below is stricter than pillow's warning.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        source = io.BytesIO(raw) if isinstance(raw, bytes) else str(raw)
        image = Image.open(source, formats=_FORMATS)
    if image.width * image.height > LARGEST:
        image.close()
        problem = f"{name} declares {image.width} x {image.height} pixels"
        raise InputError(f"{problem}, more than {LARGEST:,}; scale it down or remove it")
    return image


def _name(raw: Raw | Image.Image, where: str) -> str:
    """Return what a message calls an image."""
    if isinstance(raw, Path):
        return str(raw)
    return f"{where}: an image"


def decode(raw: Raw | Image.Image | Deep, pixels: Pixels, where: str) -> npt.NDArray[np.uint8]:
    """Return one image as C x H x W, with the shape that `pixels` says; `where` begins messages. An
    image that a caller has opened stays open and as it is.
    """
    picture, white = _unwrapped(raw)
    shape = (pixels.size, pixels.size)
    mode = {1: "L", 3: "RGB"}[pixels.channels]
    if isinstance(picture, np.ndarray):
        if picture.shape == (pixels.channels, *shape):
            return picture
        # Pillow has no axis for the channel of a grey picture, and the last axis for colours.
        array = picture[0] if picture.shape[0] == 1 else picture.transpose(1, 2, 0)
        image = Image.fromarray(array).convert(mode)
    else:
        image = _converted(picture, mode, shape, where, white)
    if image.size != shape:
        # The middle square: scaling both sides differently would distort the picture.
        side = min(image.size)
        left = (image.width - side) // 2
        top = (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        image = square.resize(shape, Image.Resampling.BILINEAR)
    array = np.asarray(image)
    if pixels.channels == 1:
        return array[None]
    return array.transpose(2, 0, 1)


def _converted(
    raw: Raw | Image.Image, mode: str, shape: tuple[int, int], where: str, white: int | None
) -> Image.Image:
    """Return an encoded or opened image upright and in this mode, and no smaller than `shape` if it
    can be decoded so. `white` is the value of white in a grey picture of more than 8 bits; None if
    training saw no such picture.
    """
    name = _name(raw, where)
    if isinstance(raw, Image.Image):
        with _blamed(f"{name} is damaged"):
            raw.load()
            return _upright(_eight_bits(raw, name, white).convert(mode), raw)
    with _open(raw, where) as file, _blamed(f"{name} is damaged"):
        # JPEG can be decoded at a half, a quarter or an eighth of its size.
        file.draft(mode, shape)
        file.load()
        return _upright(_eight_bits(file, name, white).convert(mode), file)


def _upright(image: Image.Image, file: Image.Image) -> Image.Image:
    """Turn an image as the EXIF data of its file say; damaged EXIF data do not count."""
    turns = {  # by orientation; 1 is upright
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(file.getexif().get(_ORIENTATION, 1))
    except Exception:  # every format raises its own errors
        return image
    if turn is None:
        return image
    return image.transpose(turn)


def _eight_bits(image: Image.Image, name: str, white: int | None) -> Image.Image:
    """Return an image of 8 bits without transparency. Levels above white are cut."""
    if is_deep(image):
        levels = _levels(image, name)
        if white is None:
            white = WHITES[-1]
            problem = (
                "some pictures are grey with more than 8 bits, unlike all that training looked at"
            )
            advice = "If that is wrong, save them with 8 bits"
            warn_once(f"{problem}; {white} counts as white. {advice}")
        if levels.max() > white:
            # Without the name: there may be thousands of such pictures.
            problem = f"some pictures have grey levels above {white}"
            warn_once(f"{problem}, which counts as white; they are cut")
        scaled = np.rint(np.minimum(levels, white) * (255 / white))
        transparent = image.info.get("transparency")
        if isinstance(transparent, int):  # the level that stands for transparent pixels
            scaled[levels == transparent] = 255
        return Image.fromarray(scaled.astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, _GROUND)
        return Image.alpha_composite(ground, image).convert("RGB")
    if image.mode == "CMYK":
        return image.convert("RGB")
    return image


def decode_all(
    raws: Sequence[Raw | Image.Image | Deep], pixels: Pixels, where: str | Sequence[str]
) -> Tensor:
    """Return decoded images, n x C x H x W, from a few threads (pillow works outside of Python's
    lock). Error messages begin with `where`: one text for all images, or one for each.
    """
    places = where
    if isinstance(where, str):
        places = [where] * len(raws)
    out = np.empty((len(raws), pixels.channels, pixels.size, pixels.size), dtype=np.uint8)

    def decode_some(start: int) -> None:
        """Decode `_AT_ONCE` images into `out`."""
        for position in range(start, min(start + _AT_ONCE, len(raws))):
            out[position] = decode(raws[position], pixels, places[position])

    with ThreadPoolExecutor() as pool:
        list(pool.map(decode_some, range(0, len(raws), _AT_ONCE)))
    return torch.from_numpy(out)
