"""From texts to tensors: tokenise once, kept under a checksum, packed without loss."""

import logging
from collections.abc import Sequence

import pytest
import torch

from attittud_lab.data.texts import SHORTEST, Reader, tokenise
from attittud_lab.errors import InputError

# of tokenizers and transformers
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Letters:
    """Every letter is a word; 1 and 2 are put around a text."""

    vocabulary, pad, prefix, suffix = 300, 0, [1], [2]

    def __init__(self, shift: int = 0) -> None:
        self.shift, self.calls = shift, 0

    @property
    def fingerprint(self) -> str:
        return f"letters {self.shift}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.calls += 1
        return [[ord(letter) + self.shift for letter in text] for text in texts]


def test_tokens_are_kept_under_a_checksum(tmp_path):
    words, texts = Letters(), ["abc", "", "de"]
    first = tokenise(words, texts, tmp_path)
    assert [row.tolist() for row in first] == [[97, 98, 99], [], [100, 101]]
    again = tokenise(words, texts, tmp_path)
    assert words.calls == 1 and [row.tolist() for row in again] == [row.tolist() for row in first]
    # Another tokenizer, another text, another cut between the same letters: other files.
    assert [row.tolist() for row in tokenise(Letters(1), texts, tmp_path)][2] == [101, 102]
    tokenise(words, ["abd", "", "de"], tmp_path)
    tokenise(words, ["ab", "c", "de"], tmp_path)
    assert words.calls == 3 and len(list(tmp_path.iterdir())) == 4
    found = [row.tolist() for row in tokenise(words, texts, None)]
    assert found == [row.tolist() for row in first]


def test_damaged_tokens_are_noticed(tmp_path, caplog):
    words, texts = Letters(), ["abc" * 100, "de"]
    before = tokenise(words, texts, tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "attittud"):
        after = tokenise(words, texts, tmp_path)
    assert "does not match its own checksum" in caplog.text and words.calls == 2
    assert [row.tolist() for row in after] == [row.tolist() for row in before]
    assert tokenise(words, texts, tmp_path) is not None and words.calls == 2


def test_rows_are_the_beginnings_of_texts():
    inputs, lengths = Reader(Letters(), 8, pack=True).rows(["abc", "abcdefghij", ""])
    expected = [[1, 97, 98, 99, 2, 0, 0, 0], [1, *range(97, 103), 2], [1, 2, 0, 0, 0, 0, 0, 0]]
    assert inputs.tolist() == expected
    assert lengths.tolist() == [5, 8, 2]
    with pytest.raises(InputError, match="no room for words"):
        Reader(Letters(), 2, pack=True).rows(["abc"])


@pytest.mark.parametrize("pack", [True, False])
def test_blocks_hold_every_word_once(pack):
    sizes = [1, 30, 0, 5, 100, 2, 2, 2, 61, 7] * 5
    texts = [chr(97 + n % 26) * size for n, size in enumerate(sizes)]
    inputs, lengths = Reader(Letters(), 32, pack=pack).blocks(texts)
    assert torch.equal(lengths, (inputs != 0).sum(1)) and int(lengths.max()) == 32
    kept = inputs[(inputs > 2)]
    assert kept.tolist() == [ord(letter) for text in texts for letter in text]
    starts, ends = (inputs == 1).sum(1), (inputs == 2).sum(1)
    assert torch.equal(starts, ends) and (starts > 1).any() == pack and (inputs[:, 0] == 1).all()
    # The rest of a text that is cut has its own prefix and suffix, with one text between them.
    for row in inputs:
        parts = "".join(map(chr, row[row > 0].tolist()))
        for part in parts.split("\1")[1:]:
            assert part.endswith("\2") and len(set(part[:-1])) == 1
    if pack:  # full, except for a rest that is too short for a text
        assert (lengths[:-1] > 32 - 2 - SHORTEST).all()
    with pytest.raises(InputError, match="contain no words"):
        Reader(Letters(), 32, pack=pack).blocks(["", ""])
