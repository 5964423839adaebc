"""Stratified splits, groups that stay whole, and copies that are in two parts at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attittud_lab.config.load import loads
from attittud_lab.data.parts import read_parts
from attittud_lab.data.splits import amount, are_in, digests_of, pack, strata, stratified, unpack
from attittud_lab.errors import InputError
from tests.helpers.data_sets import Row, numbered, read_primary, write


def labelled(texts: list[str]) -> list[Row]:
    return [(text, "ab"[n % 2]) for n, text in enumerate(texts)]


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=3)))
def test_stored_digests_recognise_exactly_their_texts(known, asked):
    stored, words = unpack(pack([digests_of(known)])), digests_of([*asked, *known])
    wanted = np.isin(words, digests_of(known)) & (words != b"")
    assert are_in(words, stored).tolist() == wanted.tolist()


def test_a_few_copies_are_a_warning_and_many_an_error(tmp_path, caplog):
    def write_splits(copied: int) -> None:
        train = numbered(0, ["a", "b"] * 40)
        other = numbered(100, ["a", "b"] * 20)
        write(tmp_path / "train.jsonl", train)
        write(tmp_path / "test.jsonl", train[:copied] + other[copied:])

    whole = "validation: 1, "  # nearly all of train is trained on
    write_splits(0)
    read_primary(f"{whole}path: {tmp_path}")
    assert "are also in" not in caplog.text
    write_splits(3)
    data = read_primary(f"{whole}path: {tmp_path}")
    assert "of the 40 test examples are also in train" in caplog.text
    assert "copies" not in data.record
    write_splits(20)
    with pytest.raises(InputError, match=r"of the 40 test examples are also in train"):
        read_primary(f"{whole}path: {tmp_path}")
    caplog.clear()
    data = read_primary(f"{whole}path: {tmp_path}, overlap: allow")
    assert data.record["copies"]["test in train"] >= 18 and caplog.text == ""
    read_primary(f"{whole}path: {tmp_path}, overlap: warn")
    assert "results on them say little" in caplog.text


SAME_LOOKS = {
    "case and blanks": (
        "Don't say: f\u00fcnf \u0938\u0915 {}!",
        "  don t SAY\nF\u00dcNF \u0938\u0915  {}?? ",
    ),
    "decomposed": ("Caf\u00e9 na\u00efve {}", "Cafe\u0301 nai\u0308ve {}"),
    "zero width": ("a plain text {}", "a pl\u200bain\ufeff te\u00adxt\u2060 {}"),
    "no width in ASCII": ("a plain text {}", "a pl\x00ain te\x7fxt {}"),
    "ignored": ("a plain text {}", "a pl\u115fain te\u180bxt\u3164 {}"),
    "selectors": ("a heart \u2764 {}", "a heart \u2764\ufe0f {}\u034f"),
    "quotes": ('it\'s "good" {}', "it\u2019s \u201cgood\u201d {}"),
    "dashes": ("one - two {} - 3", "one \u2013 two {} \u2212 3"),
    "spaces and widths": ("a full {} (1)", "a\u00a0\uff46\uff55\uff4c\uff4c {} \uff081\uff09"),
}


@pytest.mark.parametrize("pair", SAME_LOOKS.values(), ids=SAME_LOOKS)
def test_texts_that_look_the_same_are_copies(tmp_path, pair):
    """The copy is left out or refused, and the text that trains is as the file has it."""
    one, other = ([form.format(f"{n:03}") for n in range(20)] for form in pair)
    write(tmp_path / "own" / "train.jsonl", labelled(one))
    write(tmp_path / "own" / "test.jsonl", numbered(100, ["a", "b"] * 10))
    write(tmp_path / "more.jsonl", labelled([*other, "more of it", "and more"]))
    job = f"data: {{primary: {{path: {tmp_path}/own, validation: 4}}, auxiliary: {{more: {tmp_path}/more.jsonl}}}}"
    parts = read_parts(loads(job).data, 0, pooled=True)
    assert parts.auxiliary["more"].left_out == 20
    assert {*parts.primary["train"].raws()} | {*parts.primary["validation"].raws()} == {*one}
    assert digests_of(one).tolist() == digests_of(other).tolist()
    write(tmp_path / "own" / "test.jsonl", labelled(other))
    with pytest.raises(InputError, match="test examples are also in train"):
        read_parts(loads(job).data, 0)


def test_texts_that_only_look_alike_are_not_copies(tmp_path, caplog):
    """Nothing but punctuation, case and white space is looked through."""
    ours = ["3*4", "12 3", "\u0915\u093f", ":-)", "", "a+b"]
    write(tmp_path / "train.jsonl", labelled(ours) + numbered(0, ["a", "b"] * 20))
    write(tmp_path / "test.jsonl", labelled(["3/4", "1 23", "\u0915\u093e", ":-(", " ", "a-b+"]))
    read_primary(f"path: {tmp_path}, validation: 2")
    assert "are also in" not in caplog.text


def test_auxiliary_copies_of_held_out_texts_are_left_out_and_counted(tmp_path, caplog):
    """Copies of training texts too, in a portfolio: it holds out every example in turn."""
    own = tmp_path / "own"
    train = numbered(0, ["a", "b"] * 20)
    test = numbered(100, ["a", "b"] * 10)
    write(own / "train.jsonl", train)
    write(own / "test.jsonl", test)
    near = [(f"{text.upper()}.", label) for text, label in [*train, *test[4:9]]]
    write(tmp_path / "more.jsonl", [*test[:4], *near, ("something else", "x")])
    more = f"auxiliary: {{lm: {{path: {tmp_path}/more.jsonl, objective: masked_lm}}}}"
    data = loads(f"data: {{primary: {{path: {own}, validation: 10}}, {more}}}").data
    for pooled, left_out in ((False, 4 + 5 + 10), (True, 4 + 5 + 40)):
        assert read_parts(data, 0, pooled=pooled).auxiliary["lm"].left_out == left_out
        assert f"of its 50 examples, {left_out} are copies" in caplog.text


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 60), st.integers(0, 9))
def test_splits_are_stratified(labels, size, seed):
    size = min(size, len(labels))
    marks = np.array(labels)
    taken, left = stratified(len(labels), marks, size, seed)
    assert sorted([*taken, *left]) == list(range(len(labels))) and len(taken) == size
    for label in set(labels):
        share = sum(marks[row] == label for row in taken)
        assert abs(share - size * labels.count(label) / len(labels)) <= 1.5
    again, _ = stratified(len(labels), marks, size, seed)
    assert np.array_equal(taken, again)


def test_amounts_are_numbers_or_shares_of_the_examples():
    expected = (7, 3, 4, 1)
    found = (amount(None, 7, ""), amount(3, 7, ""), amount(0.5, 8, ""), amount(0.001, 8, ""))
    assert found == expected
    for wrong, message in {
        8: "there are only 7",
        -1: "negative",
        1.5: "between 0 and 1",
        1.0: "or null for all",
    }.items():
        with pytest.raises(InputError, match=f"here: .*{message}"):
            amount(wrong, 7, "here")


@given(st.integers(0, 10_000), st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_the_rarest_label_is_split_in_proportion(seed, share):
    random = np.random.default_rng(seed)
    labels = (random.random((120, 5)) < [0.3, 0.2, 0.04, 0.5, 0.1]).astype(np.int64)
    taken, left = stratified(120, labels, round(share * 120), seed)
    assert sorted([*taken, *left]) == list(range(120))
    counts = labels.sum(0)
    rarest = int(counts.argmin())
    assert abs(labels[taken, rarest].sum() - share * counts[rarest]) <= 1.5
    # Strata are labels, so no label can go astray in combinations that occur once.
    assert len(np.unique(strata(labels, 120))) <= 6


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_groups_stay_whole(seed):
    random = np.random.default_rng(seed)
    groups = np.sort(random.integers(0, 25, 100))
    labels = (random.random((100, 2)) < 0.2).astype(np.int64)
    taken, left = stratified(100, labels, 30, seed, [str(group) for group in groups])
    assert sorted([*taken, *left]) == list(range(100))
    assert not set(groups[taken]) & set(groups[left])
    smallest = np.bincount(groups)[np.unique(groups[left])].min()
    assert 30 - smallest < len(taken) <= 30  # no group that is left would have fitted


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_many_rare_classes_together_are_in_proportion(share):
    """Each alone cannot be. If all of them got less than their part, one split would lack them."""
    labels = np.array([0] * 100 + [number for number in range(1, 41) for _ in range(3)])
    chosen, _ = stratified(220, labels, round(220 * share), seed=0)
    assert (chosen >= 100).mean() * len(chosen) / 120 == pytest.approx(share, abs=0.03)


def test_groups_with_a_rare_class_are_divided_in_proportion():
    """Six of twenty groups have an example of it, and half of the groups are taken."""
    labels = np.zeros((20, 5), dtype=np.int64)
    labels[:6, 4] = 1
    groups = [str(group) for group in np.arange(20).repeat(5)]
    counts = []
    for seed in range(20):
        taken, _ = stratified(100, labels.ravel(), 50, seed, groups)
        counts.append(int(labels.ravel()[taken].sum()))
    assert set(counts) == {3}
