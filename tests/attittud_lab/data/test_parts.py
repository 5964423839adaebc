"""Parts of the data: no row is lost, and none is in two of them."""

import logging
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attittud_lab.config.load import loads
from attittud_lab.config.schema import DataConfig, PrimaryConfig
from attittud_lab.data.parts import Parts, read_parts
from attittud_lab.errors import InputError
from tests.helpers.data_sets import Row, numbered, read_configuration, read_primary, write


def test_unseen_classes_that_may_be_left_out_are_counted(tmp_path, caplog):
    write(tmp_path / "train.jsonl", numbered(0, ["cat", "dog"] * 20))
    write(tmp_path / "test.jsonl", numbered(100, ["cat", "Dog"] * 20))
    data = read_primary(f"path: {tmp_path}, unseen: drop")
    assert len(data.test) == 20 and data.record["primary"]["test"]["unseen"] == {"Dog": 20}
    assert "20 of 40 examples belong to classes that the training split lacks" in caplog.text
    assert "unseen" not in data.record["primary"]["train"]


@pytest.mark.parametrize("twin", ["Cat", "cat ", "cat\u200b", "\uff43at"])
def test_two_spellings_of_a_class_are_told(tmp_path, caplog, twin):
    """In the primary and in the auxiliary data."""
    write(tmp_path / "own.jsonl", numbered(0, ["cat", twin, "dog"] * 20))
    write(tmp_path / "more.jsonl", numbered(100, ["x", twin, "cat"] * 20))
    read_configuration(
        f"data: {{primary: {{path: {tmp_path}/own.jsonl}}, auxiliary: {{more: {tmp_path}/more.jsonl}}}}"
    )
    told = [record.message for record in caplog.records if "differ only in case" in record.message]
    assert len(told) == 2 and all(repr(twin) in text for text in told)


def drawn(random_: random.Random, first: int, count: int, classes: list[Any]) -> list[Row]:
    rows = []
    for number in range(first, first + count):
        form = random_.choice(["word %d", "Word %d!", "words %d words"])
        shown = number if random_.random() < 0.9 else number % 7  # some are copies
        rows.append((form % shown, random_.choice(classes)))
    return rows


def test_no_row_is_lost_silently(tmp_path, caplog):
    """What is read, what is left out with a warning, and what is refused add up to all there is."""
    caplog.set_level(logging.WARNING, "attittud")
    outcomes: Counter[str] = Counter()
    for case in range(int(os.environ.get("ATTITTUD_CASES", "60"))):
        random_ = random.Random(case)
        folder = tmp_path / str(case)
        pool: list[Any] = random_.choice(
            [["a", "b"], ["a", "b", "B", "c"], [0, 1, 7], [0, 1, -1, 2], ["a", "b", "", None]]
        )
        names = ["train", *random_.sample(["test", "validation", "more"], random_.randrange(4))]
        files = {}
        for position, name in enumerate(names):
            files[name] = drawn(random_, 1000 * position, random_.randrange(20, 60), pool)
            write(folder / f"{name}.{'jsonl' if case % 2 else 'parquet'}", files[name])
        overlap = random_.choice(["refuse", "warn", "allow"])
        unseen = random_.choice(["refuse", "drop"])
        config = DataConfig(primary=PrimaryConfig(path=str(folder), overlap=overlap, unseen=unseen))
        caplog.clear()
        try:
            parts = read_parts(config, case)
        except InputError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        check(parts, files, caplog.text, case)
    assert min(outcomes["read"], outcomes["refused"]) > 5, outcomes


def check(parts: Parts, files: dict[str, list[Row]], warnings: str, case: int) -> None:
    read_rows: Counter[str] = Counter()
    dropped_rows: Counter[str] = Counter()
    for part in parts.primary.values():
        source = next(name for name in files if f"({name})" in part.listing.where)
        for row, label in zip(part.rows, part.labels, strict=True):
            text, wanted = files[source][row]
            assert part.listing.fetch(np.array([row]))[0] == text, f"case {case}"
            assert part.classes[label] == str(wanted), f"case {case}"
        read_rows[source] += len(part.rows)
        dropped_rows[source] += sum(part.unseen.values())
    for source, count in read_rows.items():
        rows = [label for _, label in files[source]]
        without = sum(label in ("", None, -1) for label in rows)
        dropped = dropped_rows[source]
        assert count + without + dropped == len(rows), f"case {case}"
        for left_out in (without, dropped):
            if left_out:
                assert f"({source}): {left_out} of {len(rows)} examples" in warnings, f"case {case}"


def noisy(noise: str) -> np.ndarray:
    primary = "{path: digits, train: 90, validation: 90, test: 90}"
    other = f"{{more: {{path: digits, label_noise: {noise}}}}}"
    config = loads(f"data: {{primary: {primary}, auxiliary: {other}}}").data
    return read_parts(config, 0).auxiliary["more"].labels


def test_a_split_that_leaves_one_class_names_the_others(tmp_path):
    """The cure was a second class, which the file had."""
    path = tmp_path / "own.csv"
    path.write_text("text,label\nfirst words,good\nother words,bad\nmore words,mid\n")
    with pytest.raises(InputError, match=r"only one class .*give more examples of \w+, \w+, or"):
        read_primary(f"path: {path}, validation: 1, test: 1")


def test_label_noise_replaces_exactly_its_share():
    truth = noisy("null")
    for share in (0.0, 0.25, 1.0):
        moved = noisy(f"{{kind: shifted, share: {share}}}")
        touched = moved != truth
        assert touched.sum() == round(share * len(truth))
        assert (moved[touched] == (truth[touched] + 1) % 10).all()
    # Half of the labels are drawn again, a tenth of these the right class.
    wrong = int((noisy("{kind: random}") != truth).sum())
    assert stats.binomtest(wrong, round(len(truth) / 2), 0.9).pvalue > 1e-4


def test_all_split_seeds_may_share_the_test_examples():
    def rows(name: str, seed: int, test_seed: int | str) -> list[int]:
        primary = "{path: digits, train: 50, validation: 50, test: 90}"
        config = loads(f"data: {{primary: {primary}, test_seed: {test_seed}}}").data
        return read_parts(config, seed).primary[name].rows.tolist()

    assert rows("test", 0, 7) == rows("test", 1, 7) != rows("test", 0, 8)
    assert rows("train", 0, 7) != rows("train", 1, 7)
    assert rows("test", 5, "null") == rows("test", 0, 5)  # null: the seed of the split


@pytest.mark.parametrize("count", range(20, 25))
def test_three_fractions_may_be_all_examples(count, tmp_path):
    """Where test and validation are rounded up, the training set has fewer examples."""
    file = write(tmp_path / "own.jsonl", numbered(0, ["a", "b"] * 20)[:count])
    settings = f"path: {file}, validation: 0.2, test: 0.2"
    data = read_primary(f"{settings}, train: 0.6")
    assert count - 1 <= sum(map(len, data.all_examples)) <= count
    with pytest.raises(InputError, match=r"data\.primary\.train"):
        read_primary(f"{settings}, train: 0.8")


def test_no_split_is_in_two_parts(tmp_path):
    """Also where no split is called train, or two are read as one: test examples must not train."""

    def split(name: str, first: int, count: int) -> None:
        texts = [" ".join(f"{number:03d}") for number in range(first, first + count)]
        write(tmp_path / f"{name}.jsonl", list(zip(texts, "ab" * (count // 2), strict=True)))

    def counts(more: str = "") -> tuple[list[int], int]:
        parts = read_primary(f"path: {tmp_path}{more}").all_examples
        rows = [tuple(row) for part in parts for row in part.inputs.tolist()]
        return [len(part) for part in parts], len(rows) - len(set(rows))

    split("test", 0, 10)
    split("reviews", 10, 40)
    assert counts() == ([32, 8, 10], 0)
    split("more", 50, 20)
    assert counts() == ([48, 12, 10], 0)
    split("train", 100, 30)
    split("dev", 130, 10)
    assert counts() == ([30, 10, 10], 0)
    assert counts(", split: train+test") == ([32, 10, 8], 0)
    assert counts(", split: train+dev, test_split: test") == ([32, 8, 10], 0)
    assert counts(", test_split: train") == ([24, 10, 6], 0)
    for more, culprit in {
        "split: train+test, test_split: test": "test",
        "validation_split: dev, test_split: dev+test": "dev",
    }.items():
        with pytest.raises(InputError, match=f"the split {culprit} is in"):
            counts(f", {more}, overlap: warn")


# in auxiliary sources


def patients(path: Path, first: int, last: int, rows: int = 4, start: int = 0) -> Path:
    """A csv file of texts with a label and a patient each; every row is another text."""
    lines = ["text,label,patient"]
    for patient in range(first, last):
        for row in range(rows):
            text = f"text number {start + 100 * patient + row} here"
            lines.append(f"{text},{'ab'[(patient + row) % 2]},{patient}")
    path.write_text("\n".join(lines))
    return path


def of(parts: Parts) -> dict[str, set[str]]:
    """The groups of each part."""
    every = parts.primary | parts.auxiliary
    return {name: set(part.groups or ()) for name, part in every.items()}


def grouped(primary: Path, auxiliary: Path, more: str = "", *, pooled: bool) -> Parts:
    text = f"data: {{primary: {{path: {primary}, group: patient{more}}}, auxiliary: {{other: {auxiliary}}}}}"
    return read_parts(loads(text).data, 0, pooled=pooled)


def test_auxiliary_rows_of_groups_that_are_held_out_do_not_train(tmp_path, caplog):
    """Other rows of a patient who is held out would tell a model what it is tested on."""
    primary = patients(tmp_path / "a.csv", 0, 20)
    # ten patients of the primary file, with other texts
    other = patients(tmp_path / "b.csv", 10, 30, start=10_000)
    parts = grouped(primary, other, pooled=False)
    held_out = of(parts)["validation"] | of(parts)["test"]
    known = {str(number) for number in range(10, 30)}
    assert held_out & known and of(parts)["other"] == known - held_out
    assert parts.auxiliary["other"].left_out_groups == 4 * len(held_out & known)
    assert parts.auxiliary["other"].left_out == 0
    # A portfolio holds out every group in turn.
    pooled = grouped(primary, other, pooled=True)
    assert of(pooled)["other"] == {str(number) for number in range(20, 30)}
    assert pooled.auxiliary["other"].left_out_groups == 40
    assert "40 others belong to held-out groups" in caplog.text


def test_groups_that_look_the_same_are_the_same(tmp_path):
    """One file has a composed letter where another has a decomposed one."""
    parts = {}
    for name, letter in {"a": "Ren\u00e9", "b": "Rene\u0301\u200b"}.items():
        lines = [f"{name} {n},{'xy'[n % 2]},{letter} {n // 4}" for n in range(40)]
        parts[name] = tmp_path / f"{name}.csv"
        parts[name].write_text("\n".join(["text,label,patient", *lines, f"{name},x,{name}"]))
    assert grouped(parts["a"], parts["b"], pooled=True).auxiliary["other"].left_out_groups == 40


def test_rows_of_the_same_file_are_no_auxiliary_data_if_their_groups_are_held_out(tmp_path):
    file = patients(tmp_path / "a.csv", 0, 40)
    for pooled in (False, True):
        parts = of(grouped(file, file, ", train: 0.2, validation: 0.2, test: 0.2", pooled=pooled))
        held_out = parts["validation"] | parts["test"] | (parts["train"] if pooled else set())
        assert parts["other"]
        assert not parts["other"] & held_out
        assert len(set().union(*parts.values())) == 40
    # whole groups: rows of many patients would leave no auxiliary data
    assert len(parts["train"]) == 8
