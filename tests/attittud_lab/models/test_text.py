"""Masked words, hashed words, and the network for texts without a vocabulary."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.config.schema import ModelConfig
from attittud_lab.data.texts import Reader
from attittud_lab.models import Wanted
from attittud_lab.models.text import HashedWords, MaskedHead, TextCNN, hide, masked_losses


class OneHot(nn.Module):
    """Sees each token and nothing else."""

    features, vocabulary, pad, mask, special = 5, 5, 0, 1, (0, 1)
    table = 100 * torch.eye(5)

    def segments(self, inputs: Tensor) -> Tensor:
        return (inputs != 0).long()

    def tokens(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        return F.one_hot(inputs.long(), 5).float()


class Straight(MaskedHead):
    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return states @ table.T


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_masked_losses_are_of_masked_tokens_only():
    body = OneHot()
    inputs = torch.randint(2, 5, (64, 60))
    inputs[:, 40:] = 0
    torch.manual_seed(0)
    hidden = hide(inputs, body)
    changed = hidden.inputs != inputs
    assert not changed[:, 40:].any()
    assert (hidden.asked.sum(1) == 6).all()  # 15 % of 40
    losses = masked_losses(body, Straight(5, body.table), hidden)
    # A token that is shown is predicted without loss, a hidden one is not; nearly 88 % of those
    # asked for are changed.
    assert torch.equal(losses > 1, changed.any(1))
    torch.testing.assert_close(losses, 100 * changed.sum(1) / 6)
    found = float(changed[:, :40].float().mean())
    assert found == pytest.approx(0.15 * (0.8 + 0.1 * 4 / 5), abs=0.02)
    shown = float((hidden.inputs == 1)[:, :40].float().mean())
    assert shown == pytest.approx(0.15 * (0.8 + 0.1 / 5), abs=0.02)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_batch_has_new_masks():
    inputs = torch.randint(2, 5, (16, 60))
    first, second = (hide(inputs, OneHot()).positions.sort().values for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    third = hide(inputs, OneHot())
    torch.manual_seed(4)
    assert torch.equal(third.inputs, hide(inputs, OneHot()).inputs)


def test_the_hashing_tokenizer_makes_rows_of_numbers():
    tokens, lengths = Reader(HashedWords(), 6, pack=False).rows(
        ["A good, GOOD film", "", "x " * 100]
    )
    assert lengths.tolist() == [5, 0, 6]
    assert tokens.shape == (3, 6) and tokens.dtype == torch.int32
    assert tokens[0, 1] == tokens[0, 3]
    assert tokens[0, 5] == 0
    assert not tokens[1].any()
    assert (tokens[2] > 1).all()


@pytest.mark.parametrize("more", [1, 7])
def test_padding_does_not_change_the_vector_of_a_text(more):
    torch.manual_seed(0)
    body = TextCNN(Wanted(ModelConfig(width=8), (4,), "text")).eval()
    inputs = torch.tensor([[5, 9, 7, 0], [4, 0, 0, 0]])
    longer = F.pad(inputs, (0, more))
    torch.testing.assert_close(body(longer), body(inputs))
