"""Reading data: every layout, every split, and everything that should be refused."""

import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attittud_lab.config.load import loads
from attittud_lab.config.schema import DataConfig
from attittud_lab.data import hub
from attittud_lab.data.prepare import Pixels, Prepared, decode, prepare
from attittud_lab.data.splits import amount, stratified
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model
from attittud_lab.models.text import HashedWords


def read(text: str, seed: int = 0) -> Prepared:
    data: DataConfig = loads(text).data
    return prepare(data, seed, Reader(HashedWords(), 16, pack=False))


def encoded(number: int, size: int = 8, format: str = "PNG", mode: str = "RGB") -> bytes:  # noqa: A002 - as Pillow calls it
    """An image whose first pixel tells its number."""
    pixels = np.random.default_rng(number).integers(0, 255, (size, size, 3), dtype=np.uint8)
    pixels[0, 0] = number
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format)
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for position, name in enumerate(("cat", "dog", "no")):
        (root / name).mkdir(parents=True)
        for number in range(10):
            (root / name / f"{number}.png").write_bytes(encoded(10 * position + number))
    return root


def hub_table(labels: list[int], column: str = "image", names: list[str] | None = None, first: int = 0) -> pa.Table:
    images = [{"bytes": encoded(first + n), "path": f"../../etc/{n}.png"} for n in range(len(labels))]
    table = pa.table({column: images, "label": labels})
    features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


# ------------------------------------------------------------------------------------------------ layouts


def test_folder_of_images(pictures: Path) -> None:
    data = read(
        f"data: {{primary: {{path: {pictures}, train: 12, validation: 6, test: 6}}, auxiliary: {{rest: {pictures}}}}}"
    )
    assert data.primary.classes == ["cat", "dog", "no"] and data.primary.examples.inputs.dtype == torch.uint8
    assert data.primary.examples.inputs.shape == (12, 3, 8, 8)
    assert data.primary.examples.targets is not None
    assert torch.bincount(data.primary.examples.targets).tolist() == [4, 4, 4]
    # The first pixel says which image it is: labels and images belong together, and nothing is in two sets.
    for part in (data.primary.examples, data.validation, data.test):
        assert part.targets is not None and torch.equal(part.inputs[:, 0, 0, 0] // 10, part.targets.to(torch.uint8))
    numbers = [part.inputs[:, 0, 0, 0].tolist() for part in (data.primary.examples, data.validation, data.test)]
    rest = data.auxiliary["rest"].examples.inputs[:, 0, 0, 0].tolist()
    assert len({*numbers[0], *numbers[1], *numbers[2], *rest}) == 30 and len(rest) == 6


def test_folder_with_its_own_splits(pictures: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    root.mkdir()
    pictures.rename(root / "train")
    (root / "test" / "dog").mkdir(parents=True)
    (root / "test" / "dog" / "x.png").write_bytes(encoded(99))
    data = read(f"data: {{primary: {{path: {root}, exclude: [no]}}}}")
    assert data.primary.classes == ["cat", "dog"] and len(data.test) == 1 and data.test.targets is not None
    assert data.test.targets.tolist() == [1] and len(data.validation) == 4 and len(data.primary.examples) == 16


def test_class_filters_share_a_source(pictures: Path) -> None:
    other = f"{{path: {pictures}, exclude: [no, cat]}}"
    text = f"data: {{primary: {{path: {pictures}, classes: [no, cat]}}, auxiliary: {{other: {other}}}}}"
    data = read(text)
    assert data.primary.classes == ["no", "cat"] and data.auxiliary["other"].classes == ["dog"]
    first = data.primary.examples
    assert first.targets is not None
    assert [int(n) // 10 for n in first.inputs[:, 0, 0, 0]] == [{0: 2, 1: 0}[int(t)] for t in first.targets]


@pytest.mark.parametrize("column", ["image", "img"])
def test_parquet_of_the_hub(tmp_path: Path, column: str) -> None:
    names = ["yes", "no"]
    for shard in range(2):
        table = hub_table([0, 1] * 10, column, names, 20 * shard)
        pq.write_table(table, tmp_path / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(hub_table([1, 0, 1], column, names, 40), tmp_path / "test-00000-of-00001.parquet")
    data = read(f"data: {{primary: {{path: {tmp_path}, validation: 10}}}}")
    assert data.primary.classes == names and (len(data.primary.examples), len(data.validation), len(data.test)) == (
        30,
        10,
        3,
    )
    assert data.test.targets is not None and data.test.targets.tolist() == [1, 0, 1]


def test_cifar_100_layout(tmp_path: Path) -> None:
    table = hub_table([0, 1, 2, 3] * 5, "img").drop_columns(["label"])
    table = table.append_column("fine_label", [[0, 1, 2, 3] * 5]).append_column("coarse_label", [[0, 0, 1, 1] * 5])
    features = {
        name: {"names": names} for name, names in {"fine_label": list("abcd"), "coarse_label": list("AB")}.items()
    }
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    data = read(
        f"data: {{primary: {{path: {path}, classes: [a, c]}}, auxiliary: {{super: {{path: {path}, label: coarse_label}}}}}}"
    )
    assert data.primary.classes == ["a", "c"] and data.auxiliary["super"].classes == ["A", "B"]
    assert len(data.auxiliary["super"].examples) == 10  # the other ten are primary


def test_several_labels_at_once(tmp_path: Path) -> None:
    images = [{"bytes": encoded(number, mode="L"), "path": None} for number in range(20)]
    table = pa.table({"image": images, "labels": [[number % 2, 1, int(number % 4 == 0)] for number in range(20)]})
    pq.write_table(table.replace_schema_metadata({"class_names": json.dumps(["x", "y", "z"])}), tmp_path / "a.parquet")
    data = read(f"data: {{primary: {{path: {tmp_path}/a.parquet, classes: [z, x]}}}}")
    assert data.primary.objective == "multi_label" and data.primary.classes == ["z", "x"]
    assert data.primary.examples.inputs.shape[1:] == (1, 8, 8)
    assert data.primary.examples.targets is not None and data.primary.examples.targets.shape == (12, 2)
    assert data.primary.examples.targets[:, 0].sum() == 3  # of 5, in proportion


def write_texts(path: Path, labels: list[str]) -> Path:
    rows = [{"text": f'word{number}, "quoted"\nnext line', "label": label} for number, label in enumerate(labels)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        cells = [(row["text"].replace('"', '""'), row["label"]) for row in rows]
        path.write_text(f"text{delimiter}label\n" + "".join(f'"{text}"{delimiter}{label}\n' for text, label in cells))
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_tables_of_texts(tmp_path: Path, suffix: str) -> None:
    path = write_texts(tmp_path / f"texts.{suffix}", ["no", "NA"] * 10)
    data = read(f"data: {{primary: {path}, auxiliary: {{lm: {{path: {path}, objective: masked_lm}}}}}}")
    assert data.kind == "text" and data.primary.classes == ["NA", "no"]
    # Language modelling may use the training texts again, those of validation and test never.
    assert (
        data.auxiliary["lm"].objective == "masked_lm"
        and len(data.auxiliary["lm"].examples) == len(data.primary.examples) == 12
    )


def test_cells_without_a_label_and_numbered_texts(tmp_path: Path) -> None:
    """An empty cell is no class of its own; pandas' categories are texts."""
    rows = [f"words of {i},{('no', 'yes')[i % 2]}\n" for i in range(20)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join([*rows, "nobody has judged this,\n"]))
    labels = pa.array(["no", "yes"] * 10).dictionary_encode()
    pq.write_table(pa.table({"text": [f"words of {i}" for i in range(20)], "label": labels}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        data = read(f"data: {{primary: {tmp_path / name}}}\nmodel: text-cnn")
        assert data.primary.classes == ["no", "yes"]
        assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 20


def test_leaked_copies_are_left_out(pictures: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for folder in pictures.iterdir():
        (copy / folder.name).mkdir(parents=True)
        for image in folder.iterdir():
            (copy / folder.name / f"renamed-{image.name}").write_bytes(image.read_bytes())
    data = read(f"data: {{primary: {{path: {pictures}, train: 10}}, auxiliary: {{copy: {copy}}}}}")
    assert len(data.auxiliary["copy"].examples) == 30 - 10 - 12
    assert data.record["auxiliary"]["copy"]["left_out_as_primary"] == 22


def test_images_are_brought_to_one_shape(pictures: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in "ab":
        (other / name).mkdir(parents=True)
        Image.new("L", (31, 17), 255).save(other / name / f"{name}.jpg")
        Image.new("RGBA", (9, 40), (255, 0, 0, 10)).save(other / name / f"{name}.webp")
    data = read(f"data: {{primary: {pictures}, auxiliary: {{other: {other}}}}}")
    assert data.auxiliary["other"].examples.inputs.shape == (4, 3, 8, 8)
    assert data.auxiliary["other"].examples.inputs.float().mean() > 80
    assert read(f"data: {{primary: {pictures}, image_size: 5}}").primary.examples.inputs.shape[2:] == (5, 5)


@pytest.mark.parametrize(("values", "wanted"), [([0, 1000, 65535], [0, 3, 255]), ([0, 100, 255], [0, 100, 255])])
@pytest.mark.parametrize("format_", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_cut_off(values: list[int], wanted: list[int], format_: str) -> None:
    file = io.BytesIO()
    Image.fromarray(np.repeat(np.array([values], dtype=np.uint16), 3, 0)).save(file, format_)
    assert decode(file.getvalue(), Pixels(1, 3), "here")[0, 0].tolist() == wanted
    file = io.BytesIO()
    Image.fromarray(np.full((3, 3), 0.5, dtype=np.float32)).save(file, "TIFF")
    with pytest.raises(InputError, match=r"is damaged \(its pixels go from 0.5 to 0.5, not from 0 to 255"):
        decode(file.getvalue(), Pixels(1, 3), "here")


def test_shared_head(pictures: Path) -> None:
    job = f"data: {{primary: {{path: {pictures}, train: 6}}, auxiliary: {{more: {{path: {pictures}, share_head: true, %s}}}}}}"
    data = read(job % "weight: 1")
    model = build_model(loads("model: {name: mlp, width: 4}").model, data, 0)
    assert data.auxiliary["more"].head == "primary" and list(model.heads) == ["primary"]
    with pytest.raises(InputError, match=r"share_head: its classes \(cat, dog\) are not those of the primary task"):
        read(job % "exclude: [no]")


# ------------------------------------------------------------------------------------------------ splits


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 60), st.integers(0, 9))
def test_splits_are_stratified(labels: list[int], size: int, seed: int) -> None:
    size = min(size, len(labels))
    marks = np.array(labels)
    taken, left = stratified(len(labels), marks, size, seed)
    assert sorted([*taken, *left]) == list(range(len(labels))) and len(taken) == size
    for label in set(labels):
        share = sum(marks[row] == label for row in taken)
        assert abs(share - size * labels.count(label) / len(labels)) <= 1.5
    again, _ = stratified(len(labels), marks, size, seed)
    assert np.array_equal(taken, again)


def test_seeds_of_splits(pictures: Path) -> None:
    def train(text: str, seed: int) -> list[int]:
        rows: list[int] = read(f"data: {{primary: {{path: {pictures}, train: 9}}, {text}}}", seed).record["primary"][
            "train"
        ]["rows"]
        return rows

    assert train("seed: 0", 1) == train("seed: 0", 2) != train("seed: 5", 1)
    assert train("seed: null", 1) != train("seed: null", 2)


def test_no_split_is_in_two_parts(tmp_path: Path) -> None:
    """Also where none is called train, or two are read as one: what tests must not train."""
    root = tmp_path / "texts"
    root.mkdir()

    def write(name: str, first: int, count: int) -> None:
        rows = [{"text": " ".join(f"{n:03d}"), "label": "ab"[n % 2]} for n in range(first, first + count)]
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def counts(more: str = "") -> tuple[list[int], int]:
        data = read(f"data: {{primary: {{path: {root}{more}}}}}")
        parts = [data.primary.examples, data.validation, data.test]
        rows = [tuple(row) for part in parts for row in part.inputs.tolist()]
        return [len(part) for part in parts], len(rows) - len(set(rows))

    write("test", 0, 10)
    write("reviews", 10, 40)
    assert counts() == ([32, 8, 10], 0)
    write("more", 50, 20)
    assert counts() == ([48, 12, 10], 0)
    write("train", 100, 30)
    write("dev", 130, 10)
    assert counts() == ([30, 10, 10], 0)
    assert counts(", split: train+test") == ([32, 10, 8], 0)
    assert counts(", split: train+dev, test_split: test") == ([32, 8, 10], 0)
    assert counts(", test_split: train") == ([24, 10, 6], 0)
    for more, message in {
        "split: train+train": "the split train is named twice in train",
        "split: train+test, test_split: test": "the split test is in train and in test",
        "validation_split: dev, test_split: dev+test": "the split dev is in validation and in test",
    }.items():
        with pytest.raises(InputError, match=message):
            counts(f", {more}")
    for name in ("train", "reviews", "more"):
        (root / f"{name}.jsonl").unlink()
    with pytest.raises(InputError, match="has dev and test, but nothing to train on"):
        counts()
    with pytest.raises(InputError, match="there is no split 'x'"):
        read(f"data: {{primary: {{path: {root / 'dev.jsonl'}, test_split: x}}}}")


def test_amounts() -> None:
    assert (amount(None, 7, ""), amount(3, 7, ""), amount(0.5, 8, ""), amount(0.001, 8, "")) == (7, 3, 4, 1)
    for wrong, message in {
        8: "only 7 are there",
        -1: "negative",
        1.5: "between 0 and 1",
        1.0: "null takes all",
    }.items():
        with pytest.raises(InputError, match=f"here: .*{message}"):
            amount(wrong, 7, "here")


# ------------------------------------------------------------------------------------------------ what is refused


def bomb(width: int, height: int) -> bytes:
    """A PNG of some bytes that announces so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(9000, 9000), (60000, 60000)])
def test_decompression_bomb_is_refused(pictures: Path, size: tuple[int, int]) -> None:
    (pictures / "cat" / "0.png").write_bytes(bomb(*size))
    with pytest.raises(InputError, match=r"0\.png announces .* pixels"):
        read(f"data: {{primary: {pictures}}}")


def test_unreadable_images_are_named(pictures: Path) -> None:
    for content in (b"no image", b"", encoded(1)[:60], encoded(3)[:150]):
        (pictures / "dog" / "5.png").write_bytes(content)
        with pytest.raises(InputError, match=r"dog/5\.png (cannot be read|is damaged) .*repair or remove it"):
            read(f"data: {{primary: {pictures}}}")


def test_a_folder_is_no_image_whatever_it_is_called(pictures: Path) -> None:
    (pictures / "cat" / "old.png").mkdir()
    data = read(f"data: {{primary: {pictures}}}")
    assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 30


def test_links_out_of_the_folder_are_refused(pictures: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(200))
    link = pictures / "cat" / "link.png"
    link.symlink_to(secret)
    with pytest.raises(InputError, match=r"link\.png: is a link out of"):
        read(f"data: {{primary: {pictures}}}")
    link.unlink()
    (tmp_path / "elsewhere").mkdir()
    (pictures / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="linked: is a link out of"):
        read(f"data: {{primary: {pictures}}}")
    tables = tmp_path / "tables"
    tables.mkdir()
    write_texts(tmp_path / "private.csv", ["a", "b"])
    (tables / "train.csv").symlink_to(tmp_path / "private.csv")
    with pytest.raises(InputError, match=r"train\.csv: is a link out of"):
        read(f"data: {{primary: {tables}}}")


def test_bad_places(tmp_path: Path, pictures: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow" / "cat").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(encoded(1))
    (tmp_path / "notes.doc").write_text("x")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "broken.jsonl").write_text('{"text": ')
    for path, message in {
        tmp_path / "picturse": r"no such file or folder .* did you mean 'pictures'\?",
        tmp_path / "empty": "the folder is empty; put one folder of images per class",
        tmp_path / "hollow": "cat: there is no image in it",
        tmp_path / "flat": "make one folder of images for each class",
        tmp_path / "notes.doc": r"cannot read a \.doc",
        tmp_path / "broken.parquet": "cannot be read as parquet",
        tmp_path / "broken.jsonl": "cannot be read as jsonl",
    }.items():
        with pytest.raises(InputError, match=message):
            read(f"data: {{primary: {path}}}")
    with pytest.raises(InputError, match=r"there is no class 'cta'; did you mean 'cat'\?"):
        read(f"data: {{primary: {{path: {pictures}, classes: [cta, dog]}}}}")
    with pytest.raises(InputError, match="there is no split 'trian'"):
        read(f"data: {{primary: {{path: {pictures}, split: trian}}}}")
    texts = write_texts(tmp_path / "texts.csv", ["a", "b"])
    with pytest.raises(InputError, match="holds texts, but the primary source holds images"):
        read(f"data: {{primary: {pictures}, auxiliary: {{t: {texts}}}}}")
    with pytest.raises(InputError, match="expected hf:owner/name"):
        read("data: {primary: 'hf:a/b/c'}")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("column", ["text", "label"])
def test_other_encodings_are_named(tmp_path: Path, suffix: str, column: str) -> None:
    path = tmp_path / f"texts.{suffix}"
    latin = "caf\u00e9".encode("latin-1")
    content = {"text": b"tea %d", "label": b"b"} | {column: latin + b" %d"}
    if suffix == "parquet":
        texts = pa.array([latin] * 20)
        strange = pa.Array.from_buffers(pa.string(), 20, texts.buffers())
        pq.write_table(pa.table({"text": ["tea"] * 20, "label": ["a", "b"] * 10} | {column: strange}), path)
    else:
        line = b'{"text": "%b", "label": "%b"}\n' if suffix == "jsonl" else b"%b,%b\n"
        rows = [line % tuple(value.replace(b"%d", b"%d" % n) for value in content.values()) for n in range(20)]
        path.write_bytes((b"text,label\n" if suffix == "csv" else b"") + b"".join(rows))
    with pytest.raises(InputError, match=f"column '{column}' is not UTF-8 text; save the file in that encoding"):
        read(f"data: {{primary: {{path: {path}}}}}")


def test_bad_labels(tmp_path: Path, pictures: Path) -> None:
    with pytest.raises(InputError, match=r"one class only \('cat'\)"):
        read(f"data: {{primary: {{path: {pictures}, classes: [cat]}}}}")
    with pytest.raises(InputError, match="no example of"):
        read(f"data: {{primary: {{path: {pictures}, train: 2}}}}")
    with pytest.raises(InputError, match="200 examples are wanted, but only"):
        read(f"data: {{primary: {{path: {pictures}, train: 200}}}}")
    path = tmp_path / "t.csv"
    path.write_text("text,verdict\na,b\n")
    with pytest.raises(InputError, match="no label column was found; name it by label:"):
        read(f"data: {{primary: {path}}}")
    with pytest.raises(InputError, match=r"there is no column 'lable' \(label:\); its columns are text, verdict"):
        read(f"data: {{primary: {{path: {path}, label: lable}}}}")
    path.write_bytes("text,label\nschön,a\n".encode("latin-1"))
    with pytest.raises(InputError, match="column 'text' is not UTF-8 text"):
        read(f"data: {{primary: {path}}}")
    path.write_text("text,label\n")
    with pytest.raises(InputError, match="there are no examples in it"):
        read(f"data: {{primary: {path}}}")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column looks like an image or a text"):
        read(f"data: {{primary: {path}}}")
    for labels, message in {
        "[[0, 1], [1]]": "different lengths",
        "[[0, 2], [1, 1]]": "0 and 1 only",
        "[[0, null], [1, 1]]": "0 and 1 only",
        '[["a"], ["b"]]': "0 and 1 only",
        "[[], []]": "are empty",
        "[1.5, 2.5]": "a label is a whole number",
    }.items():
        pq.write_table(pa.table({"text": ["a", "b"], "label": json.loads(labels)}), tmp_path / "l.parquet")
        with pytest.raises(InputError, match=message):
            read(f"data: {{primary: {tmp_path}/l.parquet}}")


def test_hub_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"needs the package 'datasets'.*attittud\[hub\]"):
        read("data: {primary: 'hf:owner/name'}")


def test_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})

    def split(count: int, first: int) -> object:
        rows = {
            "img": [{"bytes": encoded(first + n), "path": None} for n in range(count)],
            "label": [n % 2 for n in range(count)],
        }
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(hub, "_answers", lambda _address: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda _name: {"train": split(20, 0), "test": split(6, 20)})
    data = read("data: {primary: {path: 'hf:owner/name', validation: 4}}")
    assert data.primary.classes == ["no", "yes"] and data.primary.examples.inputs.shape == (16, 3, 8, 8)
    assert data.test.targets is not None and data.test.targets.tolist() == [0, 1, 0, 1, 0, 1]

    # Without a split called train, all are read.
    monkeypatch.setattr(datasets, "load_dataset", lambda _name: {"first": split(20, 0), "second": split(10, 20)})
    data = read("data: {primary: {path: 'hf:owner/name'}}")
    assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 30

    def offline(_name: str) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"hf:owner/name: cannot be loaded \(no network\)"):
        read("data: {primary: 'hf:owner/name'}")
    (tmp_path / "owner/name").mkdir(parents=True)
    with pytest.raises(InputError, match=r"in place of the hub's; write owner/name without hf:"):
        read("data: {primary: 'hf:owner/name'}")


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data sets are not here")
@pytest.mark.parametrize(
    ("text", "sizes", "classes"),
    [
        (
            "{path: %s/cifar10, classes: [cat, dog], train: 100, validation: 100, test: 200}",
            (100, 100, 200),
            ["cat", "dog"],
        ),
        ("{path: %s/nih_chest_xray, group: patient, train: 50, test: 60, validation: 70}", (50, 70, 60), None),
        ("{path: %s/tiny_imagenet, train: 400, test: 200, validation: 200}", (400, 200, 200), None),
        ("{path: %s/amazon_helpful, train: 100, test: 50, validation: 60}", (100, 60, 50), ["0", "1"]),
    ],
)
def test_real_copies(text: str, sizes: tuple[int, int, int], classes: list[str] | None) -> None:
    data = read(f"data: {{primary: {text % SHARED}}}")
    assert (len(data.primary.examples), len(data.validation), len(data.test)) == sizes
    assert classes is None or data.primary.classes == classes
