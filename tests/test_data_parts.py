"""Parts of the data: no row is lost, none is in two of them, and what would take too much is refused before it does."""

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab import cli
from attittud_lab.config.load import loads
from attittud_lab.config.schema import AuxiliaryConfig, DataConfig, PrimaryConfig
from attittud_lab.data import prepare as preparing
from attittud_lab.data import source as sources
from attittud_lab.data.parts import Parts, read_parts, with_noise
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.source import Columns, Listing, register_source
from attittud_lab.data.splits import MOST_COPIED
from attittud_lab.data.tasks import OBJECTIVES, Examples, Objective, Order, Task
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError
from attittud_lab.models.text import HashedWords

Row = tuple[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]}), path)
    else:
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return path


def numbered(first: int, labels: list[Any]) -> list[Row]:
    return [(f"text number {first + n} here", label) for n, label in enumerate(labels)]


def read(primary: str, more: str = "") -> Prepared:
    data: DataConfig = loads(f"data: {{primary: {{{primary}}}{more}}}").data
    return prepare(data, 0, Reader(HashedWords(), 16, pack=False))


# ------------------------------------------------------------------------------------------------ classes nobody trained on


@pytest.mark.parametrize("split", ["test", "validation"])
def test_examples_of_unseen_classes_are_refused_with_the_nearest_spelling(tmp_path: Path, split: str) -> None:
    write(tmp_path / "train.jsonl", numbered(0, ["cat", "dog"] * 20))
    write(tmp_path / f"{split}.jsonl", numbered(100, ["cat", "Dog", "mule", "cat"] * 10))
    with pytest.raises(InputError) as refused:
        read(f"path: {tmp_path}")
    message = str(refused.value)
    assert f"({split}): 20 of 40 examples are of classes that the training split lacks" in message
    assert "'Dog' (10; did you mean 'dog'?)" in message and "'mule' (10)" in message
    assert "data.primary.classes" in message and "data.primary.unseen: drop" in message


def test_unseen_classes_that_may_be_left_out_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "train.jsonl", numbered(0, ["cat", "dog"] * 20))
    write(tmp_path / "test.jsonl", numbered(100, ["cat", "Dog"] * 20))
    data = read(f"path: {tmp_path}, unseen: drop")
    assert len(data.test) == 20 and data.record["primary"]["test"]["unseen"] == {"Dog": 20}
    assert "20 of 40 examples are of classes that the training split lacks" in caplog.text
    assert "unseen" not in data.record["primary"]["train"]


def test_whole_numbers_that_the_training_split_lacks(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", numbered(0, [0, 1] * 20))
    write(tmp_path / "test.parquet", numbered(100, [1, 2] * 20))
    with pytest.raises(InputError, match=r"20 of 40 examples are of classes that the training split lacks: '2' \(20\)"):
        read(f"path: {tmp_path}")


def test_image_folders_of_an_unseen_class(tmp_path: Path) -> None:
    for split, names in {"train": ["cat", "dog"], "test": ["cat", "Dog"]}.items():
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(8):
                pixels = np.random.default_rng([number, *map(ord, split + name)]).integers(0, 255, (6, 6), np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}.png")
    with pytest.raises(InputError, match=r"8 of 16 examples .* 'Dog' \(8; did you mean 'dog'\?\)"):
        read(f"path: {tmp_path}")


def test_classes_that_are_left_out_on_purpose_are_not_missed(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", numbered(0, ["cat", "dog", "bird"] * 10))
    write(tmp_path / "test.jsonl", numbered(100, ["cat", "dog", "bird", "fish"] * 10))
    assert len(read(f"path: {tmp_path}, exclude: [bird], unseen: drop").test) == 20
    assert len(read(f"path: {tmp_path}, classes: [cat, dog]").test) == 20
    with pytest.raises(InputError, match="there is no class 'fish'"):
        read(f"path: {tmp_path}, exclude: [bird, fish]")  # as before: an error in the name would go unnoticed
    # Nobody means to leave out a class that is spelt in two ways.
    write(tmp_path / "test.jsonl", numbered(100, ["cat", " Dog", "bird"] * 10))
    with pytest.raises(InputError, match=r"' Dog' \(10; did you mean 'dog'\?\)"):
        read(f"path: {tmp_path}, classes: [cat, dog]")


def test_more_labels_than_the_training_split_has(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", numbered(0, [[n % 2, n % 3 % 2] for n in range(30)]))
    write(tmp_path / "test.jsonl", numbered(100, [[n % 2, n % 3 % 2, 1] for n in range(30)]))
    with pytest.raises(InputError, match=r"30 labels are of classes that the training split lacks: '2' \(30\)"):
        read(f"path: {tmp_path}")
    assert len(read(f"path: {tmp_path}, unseen: drop").test) == 30


def test_examples_without_a_label_are_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.jsonl", numbered(0, ["a", "b", None, ""] * 10))
    data = read(f"path: {tmp_path}/a.jsonl")
    assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 20
    assert "20 of 40 examples have no label and are left out" in caplog.text


@pytest.mark.parametrize("labels", [[-1] * 20, [None, ""] * 10, [-1, -2] * 10])
def test_labels_that_mean_none(tmp_path: Path, labels: list[Any]) -> None:
    write(tmp_path / "a.parquet", numbered(0, labels))
    with pytest.raises(InputError, match=r"no example has a label .* name another column by label:"):
        read(f"path: {tmp_path}/a.parquet")


def test_gaps_between_whole_numbers_are_no_classes(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbered(0, [1, 2, 5] * 10))
    data = read(f"path: {tmp_path}/a.parquet")
    assert data.primary.classes == ["1", "2", "5"]
    # Until now class 0 had to be left out by name.
    assert read(f"path: {tmp_path}/a.parquet, exclude: ['0', '3', '4']").record["sha256"] == data.record["sha256"]
    with pytest.raises(InputError, match="there is no class '6'"):
        read(f"path: {tmp_path}/a.parquet, exclude: ['6']")


def test_splits_of_different_classes_are_joined_by_name(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", numbered(0, [0, 1] * 10))
    write(tmp_path / "more.parquet", numbered(50, [1, 2] * 10))
    data = read(f"path: {tmp_path}, split: train+more")
    targets = [part.targets for part in (data.primary.examples, data.validation, data.test)]
    assert data.primary.classes == ["0", "1", "2"]
    assert Counter(torch.cat([found for found in targets if found is not None]).tolist()) == {0: 10, 1: 20, 2: 10}


# ------------------------------------------------------------------------------------------------ copies


def test_a_test_split_that_is_the_training_split_is_refused(tmp_path: Path) -> None:
    rows = numbered(0, ["a", "b"] * 20)
    for name in ("train", "test"):
        write(tmp_path / f"{name}.jsonl", rows)
    with pytest.raises(InputError, match=r"32 of the 40 test examples are also in train.*overlap: warn to go on"):
        read(f"path: {tmp_path}")


@pytest.mark.parametrize("kind", ["text", "image"])
@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_few_copies_are_a_warning_and_many_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, split: str, kind: str
) -> None:
    def write_splits(copied: int) -> None:
        train, other = list(range(80)), [*range(copied), *range(100, 140 - copied)]
        for name, numbers in {"train": train, split: other}.items():
            if kind == "text":
                write(tmp_path / f"{name}.jsonl", [(f"text number {n}", "ab"[n % 2]) for n in numbers])
                continue
            for n in range(140):
                path = tmp_path / name / "ab"[n % 2] / f"{n}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                if n in numbers:
                    pixels = np.random.default_rng(n).integers(0, 255, (6, 6), dtype=np.uint8)
                    Image.fromarray(pixels).save(path)

    whole = "validation: 1, " if split == "test" else "test: 1, "  # nearly all of train is trained on
    write_splits(0)
    read(f"{whole}path: {tmp_path}")
    assert "are also in" not in caplog.text
    write_splits(3)
    data = read(f"{whole}path: {tmp_path}")
    assert f"of the 40 {split} examples are also in train" in caplog.text
    assert "copies" not in data.record  # so that runs of older versions can go on
    write_splits(20)
    with pytest.raises(InputError, match=rf"of the 40 {split} examples are also in train"):
        read(f"{whole}path: {tmp_path}")
    caplog.clear()
    data = read(f"{whole}path: {tmp_path}, overlap: allow")
    assert data.record["copies"][f"{split} in train"] >= 18 and caplog.text == ""
    read(f"{whole}path: {tmp_path}, overlap: warn")
    assert "figures on them say little" in caplog.text


def test_the_share_that_is_refused(tmp_path: Path) -> None:
    def attempt(copied: int) -> None:
        write(tmp_path / "train.jsonl", numbered(0, ["a", "b"] * 50))
        write(tmp_path / "validation.jsonl", numbered(1000, ["a", "b"] * 10))
        write(tmp_path / "test.jsonl", numbered(100 - copied, ["a", "b"] * 20))
        read(f"path: {tmp_path}")

    attempt(int(40 * MOST_COPIED))
    with pytest.raises(InputError, match="5 of the 40 test examples"):
        attempt(int(40 * MOST_COPIED) + 1)


def test_copies_of_texts_but_for_case_blanks_and_punctuation(tmp_path: Path) -> None:
    texts = [f"Don't say: {word}!" for word in ("one", "two", "three", "vier", "f\u00fcnf", "\u0938\u0915", "7", "8")]
    write(tmp_path / "train.jsonl", [(text, "ab"[n % 2]) for n, text in enumerate(texts * 5)])
    trivial = [f"  don t  SAY\n{text[11:].upper()}?? " for text in texts]
    write(tmp_path / "test.jsonl", [(text, "ab"[n % 2]) for n, text in enumerate(trivial)])
    with pytest.raises(InputError, match=r"8 of the 8 test examples are also in train \(8 of them but for case"):
        read(f"path: {tmp_path}, validation: 8, overlap: refuse")


def test_texts_that_only_look_alike_are_no_copies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Vowel signs, sums, smileys and blank texts: nothing but punctuation, case and white space is looked through."""
    pairs = [
        ("3*4", "3/4"),
        ("12 3", "1 23"),
        ("\u0915\u093f", "\u0915\u093e"),
        (":-)", ":-("),
        ("", " "),
        ("a+b", "a-b+"),
    ]
    write(
        tmp_path / "train.jsonl",
        [(text, "ab"[n % 2]) for n, (text, _) in enumerate(pairs)] + numbered(0, ["a", "b"] * 20),
    )
    write(tmp_path / "test.jsonl", [(text, "ab"[n % 2]) for n, (_, text) in enumerate(pairs)])
    read(f"path: {tmp_path}, validation: 2")
    assert "are also in" not in caplog.text


def test_auxiliary_texts_that_are_nearly_those_of_the_test_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "own" / "train.jsonl", numbered(0, ["a", "b"] * 20))
    test = write(tmp_path / "own" / "test.jsonl", numbered(100, ["a", "b"] * 10))
    rows = [json.loads(line)["text"] for line in test.read_text().splitlines()]
    exact, near = rows[:4], [text.upper() + "." for text in rows[4:9]]
    write(tmp_path / "more.jsonl", [(text, "x") for text in [*exact, *near, "something else"]])
    more = f", auxiliary: {{lm: {{path: {tmp_path}/more.jsonl, objective: masked_lm}}}}"
    data = read(f"path: {tmp_path}/own", more)
    assert data.record["auxiliary"]["lm"]["left_out_as_primary"] == 4
    assert "data.auxiliary.lm: 5 of its texts are also in the primary test set, but for case" in caplog.text


def test_looking_for_copies_takes_little_time_and_memory(tmp_path: Path) -> None:
    rows = numbered(0, ["a", "b"] * 30_000)
    write(tmp_path / "a.parquet", rows)
    config = DataConfig(primary=PrimaryConfig(path=str(tmp_path / "a.parquet")))
    begun = time.process_time()
    assert sum(len(part.rows) for part in read_parts(config, 0).primary.values()) == 60_000
    assert time.process_time() - begun < 10  # a second or less on a machine that is not busy


# ------------------------------------------------------------------------------------------------ too much


def test_two_numbers_far_apart_take_no_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", numbered(0, [0, 99_999] * 20))
    begun = time.process_time()
    data = read(f"path: {path}, train: 8", f", auxiliary: {{same: {{path: {path}, label: label}}}}")
    assert data.primary.classes == data.auxiliary["same"].classes == ["0", "99999"] and time.process_time() - begun < 5


def test_ten_thousand_classes_take_no_time(tmp_path: Path) -> None:
    labels = [f"class {n}" for n in range(10_000)]
    path = write(tmp_path / "a.jsonl", numbered(0, labels * 5))
    begun = time.process_time()
    parts = read_parts(DataConfig(primary=PrimaryConfig(path=str(path))), 0)
    assert len(parts.primary["train"].classes) == 10_000 and time.process_time() - begun < 20


@pytest.mark.parametrize(("size", "message"), [(3000, "give at most 512, as more only repeats pixels"), (512, None)])
def test_images_that_would_be_stretched_too_far(
    size: int, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "decode_all", lambda raws, pixels, where: torch.zeros(len(raws), 1, 8, 8))
    if message is None:
        read("path: digits", f", image_size: {size}")
        return
    with pytest.raises(InputError, match=message):
        read("path: digits", f", image_size: {size}")


def test_images_that_do_not_fit_are_refused_before_one_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "free_memory", lambda: 800e6)
    monkeypatch.setattr(preparing, "decode_all", lambda *_: pytest.fail("decoded"))
    with pytest.raises(InputError) as refused:
        read("path: digits", ", image_size: 500")
    assert "1,797 images of 500 x 500 pixels (data.image_size) would take 0.4 GiB" in str(refused.value)
    assert "at most half of the 0.7 GiB that are free" in str(refused.value)


def test_tables_that_do_not_fit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that is repeated a million times takes some bytes of a parquet file."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.DictionaryArray.from_arrays(np.zeros(10**6, np.int32), ["a"])}), path)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(sources, "free_memory", lambda: 10e6)
    with pytest.raises(InputError, match="its 1,000,000 rows would take"):
        read(f"path: {path}")
    (tmp_path / "a.csv").write_bytes(b"text,label\n" + bytes(10**7))
    with pytest.raises(InputError, match="the file would take"):
        read(f"path: {tmp_path}/a.csv")


def test_free_memory_is_known() -> None:
    assert sources.free_memory() > 2**20


def test_too_many_auxiliary_sources() -> None:
    config = DataConfig(auxiliary={f"source{n}": AuxiliaryConfig() for n in range(20_000)})
    begun = time.process_time()
    with pytest.raises(InputError, match="20,000 sources are more than 1,000"):
        read_parts(config, 0)
    assert time.process_time() - begun < 2


def test_a_path_is_read_once_for_all_that_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attittud_lab.data import tables

    path = write(tmp_path / "a.parquet", numbered(0, ["a", "b"] * 20))
    calls, original = [], tables.read_file
    monkeypatch.setattr(tables, "read_file", lambda path: calls.append(path) or original(path))
    read(f"path: {path}, train: 8", f", auxiliary: {{x: {path}, y: {{path: {path}, objective: masked_lm}}}}")
    assert calls == [path]


def test_a_batch_far_beyond_the_examples() -> None:
    order = Order(10, 0, "guided/more")
    assert len(order.batch(0, 640)) == 640
    with pytest.raises(InputError, match=r"a batch of guided/more asks for 1,000,000,000 examples.* at most 10,000"):
        order.batch(0, 10**9)


# ------------------------------------------------------------------------------------------------ from outside


def test_a_source_from_outside_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "_SOURCES", list(sources._SOURCES))

    @register_source
    class Stripes:
        """Images of stripes that lie or stand."""

        def __init__(self, count: int) -> None:
            self.count = count

        @classmethod
        def open(cls, name: str) -> Self | None:
            return cls(int(name.removeprefix("stripes:"))) if name.startswith("stripes:") else None

        @property
        def splits(self) -> list[str]:
            return []

        def columns(self, split: str | None) -> list[str]:
            return []

        def listing(self, split: str | None, columns: Columns) -> Listing:
            pixels = np.random.default_rng(0).integers(0, 99, (self.count, 1, 8, 8)).astype(np.uint8)
            pixels[::2, :, ::2] += 150
            pixels[1::2, :, :, ::2] += 150
            labels = np.arange(self.count) % 2
            return Listing("stripes", "image", self.count, lambda rows: list(pixels[rows]), labels, ["lie", "stand"])

    (tmp_path / "job.yaml").write_text(
        f"data: {{primary: {{path: 'stripes:120'}}, auxiliary: {{digits: digits}}}}\nmodel: mlp\nstrategy: multitask\n"
        "training: {guided: {steps: 40, primary_batch: 16, batch_size: 8}, finetune: {steps: 5, primary_batch: 16}}\n"
        f"output: {tmp_path}/runs\n"
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["train", str(tmp_path / "job.yaml"), "--quiet"])
    assert left.value.code == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "runs/job/multitask/seed-0/result.json").read_text())
    assert result["examples"] == {"train": 72, "validation": 24, "test": 24, "auxiliary/digits": 1797}
    assert result["test"]["accuracy"] > 0.8


def test_an_objective_from_outside_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which way up an image is: targets are made from images without labels."""

    def turned(examples: Examples) -> tuple[Examples, list[str]]:
        images = [examples.inputs.rot90(turns, (2, 3)) for turns in range(4)]
        return Examples(torch.cat(images), torch.arange(4).repeat_interleave(len(examples))), ["0", "90", "180", "270"]

    def losses(model: nn.Module, task: Task, images: Tensor, targets: Tensor | None, detach: bool) -> Tensor:
        assert targets is not None
        return F.cross_entropy(model(images, head=task.head, detach=detach), targets, reduction="none")

    monkeypatch.setitem(OBJECTIVES, "turned", Objective(losses, labelled=False, kinds=("image",), make=turned))
    (tmp_path / "job.yaml").write_text(
        "data: {primary: {path: digits, train: 100}, auxiliary: {up: {path: digits, objective: turned, examples: 50}}}\n"
        "model: mlp\nstrategy: multitask\n"
        "training: {guided: {steps: 5, primary_batch: 16, batch_size: 8}, finetune: {steps: 5, primary_batch: 16}}\n"
        f"output: {tmp_path}/runs\n"
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["train", str(tmp_path / "job.yaml"), "--quiet"])
    assert left.value.code == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "runs/job/multitask/seed-0/result.json").read_text())
    record = json.loads((tmp_path / "runs/job/multitask/seed-0/data.json").read_text())
    assert result["examples"]["auxiliary/up"] == 4 * record["auxiliary"]["up"]["count"] > 50


def test_objectives_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", numbered(0, ["a", "b"] * 20))
    for name, message in {
        "maskedlm": "there is no objective 'maskedlm'; did you mean 'masked_lm'",
        "multi_label": "there is no objective 'multi_label'. Choose one of classify, masked_lm",
    }.items():
        with pytest.raises(InputError, match=f"data.auxiliary.x.objective: {message}"):
            read(f"path: {path}", f", auxiliary: {{x: {{path: {path}, objective: {name}}}}}")
    with pytest.raises(InputError, match="masked_lm needs texts, but digits holds images"):
        read("path: digits", ", auxiliary: {x: {path: digits, objective: masked_lm}}")


def test_what_is_not_needed_is_not_imported() -> None:
    """`datasets` takes two seconds to import, pyarrow half of one."""
    code = (
        "import sys\nfrom attittud_lab.config.schema import DataConfig\nfrom attittud_lab.data.prepare import prepare\n"
    )
    code += "prepare(DataConfig(), 0)\nprint(sorted({'datasets', 'pyarrow', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    # scikit-learn may ask for pandas and pyarrow if they are there; nobody asks for datasets.
    assert "datasets" not in done.stdout


# ------------------------------------------------------------------------------------------------ fuzzing


def drawn(random_: random.Random, first: int, count: int, classes: list[Any]) -> list[Row]:
    rows = []
    for number in range(first, first + count):
        text = random_.choice(["word %d", "Word %d!", "words %d words"]) % (
            number if random_.random() < 0.9 else number % 7
        )
        rows.append((text, random_.choice(classes)))
    return rows


def test_no_row_is_lost_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Random splits: what is read, what is left out with a warning, and what is refused add up to all there is."""
    caplog.set_level(logging.WARNING, "attittud")
    outcomes: Counter[str] = Counter()
    for case in range(int(os.environ.get("ATTITTUD_CASES", "60"))):
        random_ = random.Random(case)
        folder = tmp_path / str(case)
        pool: list[Any] = random_.choice(
            [["a", "b"], ["a", "b", "B", "c"], [0, 1, 7], [0, 1, -1, 2], ["a", "b", "", None]]
        )
        names = ["train", *random_.sample(["test", "validation", "more"], random_.randrange(4))]
        files = {n: drawn(random_, 1000 * p, random_.randrange(20, 60), pool) for p, n in enumerate(names)}
        for name, rows in files.items():
            write(folder / f"{name}.{'jsonl' if case % 2 else 'parquet'}", rows)
        overlap, unseen = random_.choice(["refuse", "warn", "allow"]), random_.choice(["refuse", "drop"])
        config = DataConfig(primary=PrimaryConfig(path=str(folder), overlap=overlap, unseen=unseen))  # type: ignore[arg-type]  # one of the choices
        caplog.clear()
        try:
            parts = read_parts(config, case)
        except InputError as error:
            outcomes["refused"] += 1
            known = ("also in", "training split lacks", "no example of", "different", "no example is left")
            if not any(word in str(error) for word in known):
                pytest.fail(f"case {case}: {error}")
            continue
        outcomes["read"] += 1
        check(parts, files, caplog.text, case)
    assert min(outcomes["read"], outcomes["refused"]) > 5, outcomes


def check(parts: Parts, files: dict[str, list[Row]], warnings: str, case: int) -> None:
    owners = {"train": "train", "validation": "validation", "test": "test"}
    used = {name: parts.primary[name] for name in owners}
    read_rows: Counter[str] = Counter()
    for part in used.values():
        source = next(name for name in files if f"({name})" in part.listing.where)
        assert part.labels is not None
        for row, label in zip(part.rows, part.labels, strict=True):
            text, wanted = files[source][row]
            assert part.listing.fetch(np.array([row]))[0] == text and part.classes[label] == str(wanted), f"case {case}"
        read_rows[source] += len(part.rows)
    for source, count in read_rows.items():
        rows = [label for _, label in files[source]]
        without = sum(label in ("", None) or (isinstance(label, int) and label < 0) for label in rows)
        dropped = sum(sum(part.unseen.values()) for part in used.values() if f"({source})" in part.listing.where)
        assert count + without + dropped == len(rows), f"case {case}"
        if without:
            assert f"({source}): {without} of {len(rows)} examples have no label" in warnings, f"case {case}"
        if dropped:
            assert f"({source}): {dropped} of {len(rows)} examples are of classes" in warnings, f"case {case}"


# ------------------------------------------------------------------------------------------------ labels made wrong on purpose


def noisy(noise: str, seed: int, name: str = "more") -> np.ndarray:
    primary = "{path: digits, train: 90, validation: 90, test: 90}"
    config = loads(f"data: {{primary: {primary}, auxiliary: {{{name}: {{path: digits, label_noise: {noise}}}}}}}").data
    labels = read_parts(config, seed).auxiliary[name].labels
    assert labels is not None
    return labels


def test_label_noise_replaces_exactly_its_share() -> None:
    truth = noisy("null", 0)
    for share in (0.0, 0.25, 0.5, 1.0):
        moved = noisy(f"{{kind: shifted, share: {share}}}", 0)
        touched = moved != truth
        assert touched.sum() == round(share * len(truth))
        assert (moved[touched] == (truth[touched] + 1) % 10).all()
    # Half are drawn anew, a tenth of them the right class again.
    wrong = int((noisy("{kind: random}", 0) != truth).sum())
    assert stats.binomtest(wrong, round(len(truth) / 2), 0.9).pvalue > 1e-4


def test_label_noise_is_drawn_by_the_seed_of_the_split_and_the_name_of_the_source() -> None:
    first = noisy("{kind: random}", 0)
    assert (noisy("{kind: random}", 0) == first).all()
    assert (noisy("null", 0, "others") == noisy("null", 0)).all()
    assert (noisy("{kind: random}", 0, "others") != first).any()

    def shifted(seed: int) -> list[int]:
        return np.flatnonzero(noisy("{kind: shifted}", seed) != noisy("null", seed)).tolist()

    assert shifted(0) != shifted(1)


def test_label_noise_needs_classes() -> None:
    config = loads("data: {auxiliary: {more: {path: digits, label_noise: {}}}}").data
    assert config.auxiliary["more"].label_noise is not None
    for labels in (None, np.zeros((3, 2), dtype=np.int64)):
        with pytest.raises(InputError, match=r"data\.auxiliary\.more\.label_noise: needs examples with one class each"):
            with_noise(labels, 2, config.auxiliary["more"].label_noise, 0, "more")


def test_all_splits_may_be_tested_on_the_same_examples() -> None:
    def rows(name: str, seed: int, more: str) -> list[int]:
        config = loads(f"data: {{primary: {{path: digits, train: 50, validation: 50, test: 90}}{more}}}").data
        return read_parts(config, seed).primary[name].rows.tolist()

    assert rows("test", 0, ", test_seed: 7") == rows("test", 1, ", test_seed: 7") != rows("test", 0, ", test_seed: 8")
    assert rows("train", 0, ", test_seed: 7") != rows("train", 1, ", test_seed: 7")
    assert rows("test", 5, "") == rows("test", 0, ", test_seed: 5")  # left out, it is that of the split
