"""Per-example losses: each entry is the loss of that example alone."""

import pytest
import torch
from torch.nn import functional as F

from attittud.losses import per_example, per_sequence, per_sequence_kl


def batch(m: int = 5, length: int = 7, classes: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(classes, (m, length))
    labels[torch.rand(m, length) < 0.3] = -100
    return torch.randn(m, length, classes, dtype=torch.float64, requires_grad=True), labels


@pytest.mark.parametrize(("shift", "reduction"), [(True, "mean"), (False, "sum")])
def test_per_sequence_equals_the_loss_of_each_sequence_alone(shift, reduction):
    logits, labels = batch()
    found = per_sequence(logits, labels, shift=shift, reduction=reduction)
    for i in range(len(labels)):
        x, y = (logits[i, :-1], labels[i, 1:]) if shift else (logits[i], labels[i])
        assert torch.allclose(found[i], F.cross_entropy(x, y, reduction=reduction), rtol=1e-12)
    # An example's gradient touches its own logits alone.
    (gradient,) = torch.autograd.grad(found[2], logits)
    assert gradient[2].any() and not gradient[[0, 1, 3, 4]].any()


def test_sums_over_all_counted_tokens_are_the_batch_loss():
    logits, labels = batch()
    whole = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    counted = (labels[:, 1:] != -100).sum()
    assert torch.allclose(
        per_sequence(logits, labels, reduction="sum").sum() / counted, whole, rtol=1e-12
    )


def test_a_sequence_without_counted_tokens_has_loss_zero():
    logits, labels = batch()
    labels[1] = -100
    found = per_sequence(logits, labels)
    assert found[1] == 0 and found.requires_grad and found.isfinite().all()


def test_half_precision_logits_are_summed_in_full():
    logits, labels = batch()
    assert per_sequence(logits.bfloat16(), labels).dtype == torch.float32
    assert per_example(logits[:, 0].half(), labels[:, 0].clamp(min=0)).dtype == torch.float32


def test_packed_batches_are_refused():
    logits, labels = batch()
    with pytest.raises(ValueError, match=r"m x T x C .* padding-free"):
        per_sequence(logits.flatten(0, 1), labels.flatten())


def test_per_example_equals_the_loss_of_each_example_alone():
    logits = torch.randn(6, 4, dtype=torch.float64)
    classes = torch.randint(4, (6,))
    decisions = torch.randint(2, (6, 4)).double()
    values = torch.randn(6, 4).double()
    for i in range(6):
        assert torch.allclose(
            per_example(logits, classes)[i], F.cross_entropy(logits[i], classes[i])
        )
        yes_no = F.binary_cross_entropy_with_logits(logits[i], decisions[i])
        assert torch.allclose(per_example(logits, decisions)[i], yes_no)
        square = F.mse_loss(logits[i], values[i])
        assert torch.allclose(per_example(logits, values, problem_type="regression")[i], square)
        assert torch.allclose(
            per_example(logits[:, 0], values[:, 0])[i], F.mse_loss(logits[i, 0], values[i, 0])
        )


@pytest.mark.parametrize("shift", [True, False])
def test_the_divergence_equals_that_of_each_sequence_alone(shift):
    logits, labels = batch()
    start = torch.randn_like(logits)
    found = per_sequence_kl(logits, start, labels, shift=shift)
    for i in range(len(labels)):
        at = slice(None, -1) if shift else slice(None)
        counted = (labels[i, 1:] if shift else labels[i]) != -100
        now, before = (x[i, at].log_softmax(-1)[counted] for x in (logits, start))
        want = F.kl_div(now, before, log_target=True, reduction="sum") / max(1, int(counted.sum()))
        assert torch.allclose(found[i], want)


def test_the_divergence_of_equal_logits_has_no_gradient():
    """Autograd alone leaves rounding there, of which a basis would make a direction."""
    torch.manual_seed(0)
    logits = (5 * torch.randn(4, 6, 50)).requires_grad_()
    labels, start = torch.randint(50, (4, 6)), logits.detach().clone()
    losses = per_sequence_kl(logits, start, labels)
    assert not losses.any() and not torch.autograd.grad(losses.sum(), logits)[0].any()
    plain = F.kl_div(
        logits.log_softmax(-1), start.log_softmax(-1), log_target=True, reduction="sum"
    )
    assert torch.autograd.grad(plain, logits)[0].any()
    near = (start + 1e-3 * torch.randn_like(start)).requires_grad_()
    assert torch.autograd.grad(per_sequence_kl(near, start, labels).sum(), near)[0].any()


def test_divergence_of_other_shapes_is_refused():
    logits, labels = batch()
    with pytest.raises(ValueError, match="same batch"):
        per_sequence_kl(logits, logits[:, :-1], labels)
