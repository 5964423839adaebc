"""The label channel: its formula, its gradient p − q, and exactly no effect where it is closed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from attittud import LabelChannel

SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
KERNEL = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.1, 0.2]], dtype=torch.float64)
OPEN = LabelChannel(KERNEL, 0.9, SHARES)
CLOSED = LabelChannel(SHARES.repeat(2, 1), 0.0, SHARES)


def drawn(
    seed: int, n: int = 60, classes: int = 3, labels: int = 4, *, random: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions of a source that follow the classes, except for a share of random labels."""
    generator = torch.Generator().manual_seed(seed)
    primary = torch.randint(classes, (n,), generator=generator)
    others = torch.randint(classes, (n,), generator=generator)
    seen = torch.where(torch.rand(n, generator=generator) < random, others, primary)
    scores = torch.randn(n, labels, generator=generator, dtype=torch.float64)
    scores += 3 * F.one_hot((seen + 1) % labels, labels)
    shares = torch.rand(labels, generator=generator, dtype=torch.float64) + 0.1
    return scores.log_softmax(1), primary, shares / shares.sum()


def oracle(
    log_probs: Tensor, primary: Tensor, shares: Tensor, permutations: int, seed: int
) -> tuple[list[list[float]], float]:
    """C and λ by the formulas, in plain Python."""
    rows = [i for i, label in enumerate(primary.tolist()) if label >= 0]
    probs = [[math.exp(value) for value in log_probs[i].tolist()] for i in rows]
    labels = [int(primary[i]) for i in rows]
    pi = shares.tolist()
    columns = range(len(pi))
    classes = range(max(labels) + 1)

    def sums(codes: list[int]) -> list[list[float]]:
        table = [[0.0 for _ in columns] for _ in classes]
        for code, row in zip(codes, probs, strict=True):
            for a in columns:
                table[code][a] += row[a]
        return table

    def information(codes: list[int]) -> float:
        joint = [[value / len(codes) for value in row] for row in sums(codes)]
        total = 0.0
        for c in classes:
            for a in columns:
                if joint[c][a] > 0:
                    column = sum(joint[other][a] for other in classes)
                    total += joint[c][a] * math.log(joint[c][a] / (sum(joint[c]) * column))
        return total

    generator = torch.Generator().manual_seed(seed)
    by_chance = 0.0
    for _ in range(permutations):
        order = torch.randperm(len(labels), generator=generator).tolist()
        by_chance += information([labels[i] for i in order]) / permutations
    openness = max(0.0, 1 - by_chance / information(labels))
    table = sums(labels)
    matrix = []
    for c in classes:
        estimate = [(table[c][a] + pi[a]) / (labels.count(c) + 1) for a in columns]
        matrix.append([openness * estimate[a] + (1 - openness) * pi[a] for a in columns])
    return matrix, openness


@pytest.mark.parametrize(("seed", "random", "chunk"), [(0, 0.2, 4096), (1, 0.9, 7)])
def test_matrix_and_openness_equal_the_formulas(seed, random, chunk, monkeypatch):
    monkeypatch.setattr("attittud.channel._CHUNK", chunk)
    log_probs, primary, shares = drawn(seed, random=random)
    primary[::7] = -1
    log_probs[3, 1] = -math.inf  # a probability of 0
    log_probs = log_probs.log_softmax(1)
    channel = LabelChannel.estimate(log_probs, primary, shares, permutations=7, seed=seed)
    matrix, openness = oracle(log_probs, primary, shares, 7, seed)
    torch.testing.assert_close(channel.matrix, torch.tensor(matrix, dtype=torch.float64))
    assert float(channel.openness) == pytest.approx(openness, abs=1e-12)


@given(seed=st.integers(0, 1000), classes=st.integers(2, 6), labels=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_renamed_classes_and_labels_permute_the_matrix(seed, classes, labels):
    log_probs, primary, shares = drawn(seed, classes=classes, labels=labels)
    channel = LabelChannel.estimate(log_probs, primary, shares, classes=classes)
    torch.testing.assert_close(channel.matrix.sum(1), torch.ones(classes, dtype=torch.float64))
    assert 0 <= channel.openness <= 1
    rows = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    columns = torch.randperm(labels, generator=torch.Generator().manual_seed(seed))
    renamed = LabelChannel.estimate(
        log_probs[:, columns], rows.argsort()[primary], shares[columns], classes=classes
    )
    torch.testing.assert_close(renamed.matrix, channel.matrix[rows][:, columns])
    torch.testing.assert_close(renamed.openness, channel.openness)


def test_labels_that_say_nothing_have_little_effect():
    """docs/translated-labels.md has these bounds."""
    draws = [drawn(seed, 100, 2, 2, random=1.0) for seed in range(100)]
    channels = [LabelChannel.estimate(*draw, classes=2) for draw in draws]
    openness = torch.stack([channel.openness for channel in channels])
    largest = torch.stack([(c.matrix - c.shares).abs().max() for c in channels])
    assert (openness == 0).double().mean() > 0.5
    assert openness.mean() < 0.2
    assert largest.mean() < 0.05
    assert largest.max() < 0.3


def test_predictions_that_say_nothing_close_the_channel():
    _, primary, shares = drawn(0)
    same = shares.log().repeat(len(primary), 1)
    for labels in (primary, torch.zeros_like(primary)):
        channel = LabelChannel.estimate(same, labels, shares, classes=3)
        assert channel.openness == 0
        assert torch.equal(channel.matrix, (shares / shares.sum()).repeat(3, 1))
    unlabelled = LabelChannel.estimate(same, torch.full_like(primary, -1), shares, classes=3)
    assert unlabelled.openness == 0


@given(seed=st.integers(0, 10_000), examples=st.sampled_from([0, 1, 2]), several=st.booleans())
@settings(max_examples=40, deadline=None)
def test_up_to_two_examples_close_the_channel_exactly(seed, examples, several):
    """With two examples every permutation has the same information as the labels, up to rounding.

    A label whose share is 0 shows an openness of 1e-16: there, nothing but rounding is in C.
    """
    log_probs, primary, _ = drawn(seed, examples)
    shares = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    if several:
        log_probs = torch.stack([log_probs, log_probs.flip(1).log_softmax(1)], dim=1)
        shares = torch.stack([shares, shares.flip(0)])
    channel = LabelChannel.estimate(log_probs, primary, shares, classes=3, seed=seed)
    assert (channel.openness == 0).all()
    assert torch.equal(channel.matrix, shares[..., None, :].expand_as(channel.matrix))
    yes_or_no = LabelChannel.estimate(
        log_probs, (primary[:, None] > torch.arange(3)).long(), shares, seed=seed
    )
    assert (yes_or_no.openness == 0).all()


def test_a_class_without_examples_has_the_shares_and_zero_shares_stay_finite():
    log_probs, primary, _ = drawn(0)
    log_probs[:, 0] = -math.inf
    shares = torch.tensor([0.0, 0.2, 0.3, 0.5])
    channel = LabelChannel.estimate(log_probs.log_softmax(1), primary, shares, classes=5)
    torch.testing.assert_close(channel.matrix[3:], shares.double().repeat(2, 1))
    logits = torch.randn(4, 5, requires_grad=True)
    loss = channel.loss(logits, torch.tensor([0, 0, 1, 2]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and gradient.isfinite().all()


def test_the_permutations_leave_the_users_generator_alone():
    before = torch.get_rng_state()
    first, again = (LabelChannel.estimate(*drawn(0), seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.matrix, again.matrix)
    assert first.openness != LabelChannel.estimate(*drawn(0), seed=4).openness


def batch(m: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m)
    logits = torch.randn(m, 2, generator=generator, dtype=torch.float64).to(dtype)
    return logits.requires_grad_(), torch.randint(3, (m,), generator=generator)


def test_loss_and_posterior_equal_the_formulas():
    logits, labels = batch()
    logits = logits.detach()
    losses = OPEN.loss(logits, labels, "none")
    posterior = OPEN.posterior(logits.log_softmax(1), labels)
    for i, a in enumerate(labels.tolist()):
        scores = [math.exp(value) for value in logits[i].tolist()]
        joint = [scores[c] / sum(scores) * float(KERNEL[c, a]) for c in range(2)]
        assert float(losses[i]) == pytest.approx(-math.log(sum(joint)))
        assert posterior[i].tolist() == pytest.approx([value / sum(joint) for value in joint])
    torch.testing.assert_close(OPEN.loss(logits, labels), losses.mean())


def test_the_gradient_is_p_minus_q():
    logits, labels = batch()
    (gradient,) = torch.autograd.grad(OPEN.loss(logits, labels, "none").sum(), logits)
    torch.testing.assert_close(gradient, logits.softmax(1) - OPEN.posterior(logits, labels))
    assert torch.autograd.gradcheck(lambda x: OPEN.loss(x, labels), logits)
    assert torch.autograd.gradcheck(lambda x: OPEN.loss(x, labels, "none"), logits)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float64, 1.0), (torch.float32, 1e4), (torch.bfloat16, 1.0)]
)
def test_a_closed_channel_has_a_gradient_of_exactly_zero(dtype, scale):
    logits, labels = batch(dtype=dtype)
    loss = CLOSED.loss(scale * logits, labels)
    loss.backward()
    assert not logits.grad.any()
    torch.testing.assert_close(loss.double(), -SHARES[labels].log().mean(), rtol=1e-6, atol=0)
    posterior = CLOSED.posterior(logits, labels)
    torch.testing.assert_close(posterior, logits.to(posterior.dtype).softmax(1))


def test_half_precision_logits_are_summed_in_full():
    logits, labels = batch(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = OPEN.loss(logits, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), OPEN.loss(logits.double(), labels))
    loss.backward()
    assert logits.grad.dtype == torch.bfloat16


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e5, -1e5], [-math.inf, 0.0]], requires_grad=True)
    loss = OPEN.loss(logits, torch.tensor([0, 2]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize(("channel", "missing"), [(OPEN, -1), (OPEN, math.nan), (CLOSED, -100)])
def test_missing_labels_do_not_count(channel, missing):
    logits, labels = batch()
    labels = labels.double()
    labels[::3] = missing
    observed = labels >= 0
    losses = channel.loss(logits, labels, "none")
    assert not losses[~observed].any()
    torch.testing.assert_close(
        channel.loss(logits, labels), channel.loss(logits[observed], labels[observed])
    )
    unlabelled = channel.posterior(logits, labels)[~observed]
    torch.testing.assert_close(unlabelled, logits[~observed].softmax(1))
    nothing = channel.loss(logits, torch.full_like(labels, missing))
    nothing.backward()
    assert nothing == 0 and not logits.grad.any()
    assert channel.loss(logits[:0], labels[:0]) == 0


def several(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two sources with two labels each, and three binary primary tasks with missing labels."""
    generator = torch.Generator().manual_seed(seed)
    primary = torch.randint(2, (80, 3), generator=generator).double()
    scores = 2 * primary[:, :2] - 1 + torch.randn(80, 2, generator=generator)
    log_probs = torch.stack([F.logsigmoid(-scores), F.logsigmoid(scores)], dim=-1)
    primary[::5, 0] = math.nan
    return log_probs, primary, torch.tensor([[0.4, 0.6], [0.7, 0.3]])


def test_several_labels_are_the_channels_of_each_pair():
    log_probs, primary, shares = several()
    together = LabelChannel.estimate(log_probs, primary, shares)
    assert together.matrix.shape == (2, 3, 2, 2)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (6, 2), generator=generator)
    labels[0] = -1
    expected = torch.zeros(6, dtype=torch.float64)
    for s in range(2):
        for task in range(3):
            alone = LabelChannel.estimate(log_probs[:, s], primary[:, task], shares[s])
            torch.testing.assert_close(together.matrix[s, task], alone.matrix)
            torch.testing.assert_close(together.openness[s, task], alone.openness)
            pair = torch.stack([torch.zeros(6), logits[:, task]], dim=1)
            expected += alone.loss(pair, labels[:, s], "none") / 3
            posterior = together.posterior(logits, labels)[:, s, task]
            torch.testing.assert_close(posterior, alone.posterior(pair, labels[:, s]))
    observed = (labels >= 0).sum(1)
    losses = together.loss(logits, labels, "none")
    torch.testing.assert_close(losses, expected / observed.clamp(min=1))
    torch.testing.assert_close(together.loss(logits, labels), losses[observed > 0].mean())


def test_a_state_gives_the_same_channel():
    channel = LabelChannel.estimate(*several(0))
    first = LabelChannel.from_state(channel.state_dict())
    second = LabelChannel(KERNEL, 0.9, SHARES)
    second.load_state_dict(channel.state_dict())
    logits = torch.randn(5, 3)
    labels = torch.ones(5, *channel.shares.shape[:-1], dtype=torch.long)
    for copy in (first, second):
        assert torch.equal(copy.matrix, channel.matrix)
        assert torch.equal(copy.openness, channel.openness)
        assert torch.equal(copy.loss(logits, labels), channel.loss(logits, labels))
        assert repr(copy) == repr(channel)


def good() -> dict[str, Tensor]:
    log_probs, primary, shares = drawn(0)
    return {"source_log_probs": log_probs, "primary_labels": primary, "source_shares": shares}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source_log_probs", torch.randn(60, 4)),
        ("source_log_probs", torch.full((60, 4), math.nan)),
        ("source_log_probs", torch.zeros(60)),
        ("primary_labels", torch.zeros(59)),
        ("primary_labels", torch.full((60,), 0.5)),
        ("primary_labels", torch.full((60,), -1)),
        ("primary_labels", torch.zeros(60, 0)),
        ("source_shares", torch.full((3,), 1 / 3)),
        ("source_shares", torch.tensor([10.0, 20.0, 30.0, 40.0])),
        ("permutations", 0),
        ("classes", 0),
    ],
)
def test_a_wrong_argument_of_estimate_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        LabelChannel.estimate(**(good() | {name: value}))


def test_a_label_beyond_the_classes_is_named():
    with pytest.raises(ValueError, match=r"^primary_labels"):
        LabelChannel.estimate(**good(), classes=2)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("logits", (torch.zeros(4, 3), torch.zeros(4))),
        ("labels", (torch.zeros(4, 2), torch.zeros(5))),
        ("labels", (torch.zeros(4, 2), torch.full((4,), 3))),
        ("labels", (torch.zeros(4, 2), torch.full((4,), 0.5))),
        ("reduction", (torch.zeros(4, 2), torch.zeros(4), "sum")),
    ],
)
def test_a_wrong_argument_of_loss_is_named(name, arguments):
    with pytest.raises(ValueError, match=f"^{name}"):
        OPEN.loss(*arguments)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("version", {"version": 2}),
        ("openness", {"openness": None}),
        ("openness", {"openness": torch.tensor(1.5)}),
        ("matrix", {"matrix": KERNEL[:, :2]}),
        ("matrix", {"matrix": 2 * KERNEL}),
        ("shares", {"shares": 2 * SHARES}),
    ],
)
def test_a_wrong_state_is_refused_by_name(name, change):
    with pytest.raises(ValueError, match=f"^{name}"):
        LabelChannel.from_state(OPEN.state_dict() | change)
