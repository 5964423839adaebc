"""Masked words, hashed words, and the network for texts without a vocabulary."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.data.texts import Reader
from attittud_lab.models.huggingface import Encoder
from attittud_lab.models.network import build_model
from attittud_lab.models.text import HashedWords, MaskedHead, hide, masked_losses
from attittud_lab.training.train import load_data, run
from tests.helpers.networks import two_texts_job
from tests.helpers.texts import tiny_encoder
from tests.helpers.tokens import text_job

# ------------------------------------------------------------------------------------------ masking


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
def test_masked_losses_are_of_masked_tokens_only() -> None:
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
    assert float(changed[:, :40].float().mean()) == pytest.approx(
        0.15 * (0.8 + 0.1 * 4 / 5), abs=0.02
    )
    assert float((hidden.inputs == 1)[:, :40].float().mean()) == pytest.approx(
        0.15 * (0.8 + 0.1 / 5), abs=0.02
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_short_and_empty_rows_have_a_loss() -> None:
    inputs = torch.tensor([[3, 0, 0, 0], [0, 0, 0, 0], [2, 3, 4, 2]])
    hidden = hide(inputs, OneHot())
    assert hidden.asked.sum(1).tolist() == [1, 0, 1]
    assert masked_losses(OneHot(), Straight(5, OneHot.table), hidden)[1] == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_batch_has_new_masks() -> None:
    inputs = torch.randint(2, 5, (16, 60))
    first, second = (hide(inputs, OneHot()).positions.sort().values for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    third = hide(inputs, OneHot())
    torch.manual_seed(4)
    assert torch.equal(third.inputs, hide(inputs, OneHot()).inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_special_tokens_are_not_masked_and_random_ones_make_no_segment(tmp_path: Path) -> None:
    """[CLS] and its like are never asked for; where one is drawn as a random word, texts of a block
    stay apart as they were.
    """
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder"))
    data = load_data(job)
    body = build_model(job.model, data, 0).body
    assert isinstance(body, Encoder)
    inputs = data.auxiliary["lm"].examples.inputs.repeat(20, 1)
    signs = torch.isin(inputs, torch.tensor(body.special))
    body.vocabulary = 3  # random words are [PAD], [UNK] and [CLS] alone
    hidden = hide(inputs, body)
    changed = hidden.inputs != inputs
    assert (
        not (changed & signs).any()
        and not torch.isin(hidden.wanted[hidden.asked], torch.tensor(body.special)).any()
    )
    assert {0, 1, 2, 4} == set(hidden.inputs[changed].tolist())
    assert torch.equal(hidden.segments, body.segments(inputs))
    assert not torch.equal(
        hidden.segments, body.segments(hidden.inputs)
    )  # so it could have been otherwise


def test_the_hashing_tokenizer_makes_rows_of_numbers() -> None:
    tokens, lengths = Reader(HashedWords(), 6, pack=False).rows(
        ["A good, GOOD film", "", "x " * 100]
    )
    assert lengths.tolist() == [5, 0, 6]
    assert tokens.shape == (3, 6) and tokens.dtype == torch.int32
    assert (
        tokens[0, 1] == tokens[0, 3]
        and tokens[0, 5] == 0
        and not tokens[1].any()
        and (tokens[2] > 1).all()
    )


def test_text_cnn_trains(tmp_path: Path) -> None:
    result = run(two_texts_job(tmp_path, "text-cnn"), run_dir=tmp_path / "run")
    assert result.examples["auxiliary/lm"] == 24 and 0 <= result.test["accuracy"] <= 1
