"""A refresh leaves no trace in random numbers, buffers, modes and `.grad`, also after errors."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attittud import Eta, Guide
from tests.helpers.oracle import error, expected, expected_for
from tests.helpers.zoo import Problem, Transformer, TwoHeads, problem

WEIGHTS = Eta(1, 0.5, -1)


class Noisy(nn.Module):
    """All that a forward pass can disturb: dropout of every kind, statistics, counters."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.cumulative = nn.BatchNorm1d(8, momentum=None)
        self.untracked = nn.BatchNorm1d(8, track_running_stats=False)
        self.instance = nn.InstanceNorm1d(1, track_running_stats=True)
        self.dropout = nn.Dropout(0.5)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x):
        self.in_place += 1
        self.replaced = self.replaced + 1
        x = self.untracked(self.cumulative(self.norm(self.enter(x))))
        x = self.instance(self.dropout(x)[:, None])
        x = F.dropout(x, 0.5, self.training)
        x = self.lstm(x)[0]
        return self.attention(x, x, x, need_weights=False)[0][:, 0]


def noisy(seed: int = 0) -> Problem:
    p = problem("mlp", seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        p.model = TwoHeads(Noisy(), 8)
    p.model.body.norm.eval()  # a user may have frozen one layer
    return p


def snapshot(p: Problem):
    """Everything that must not change, as comparable values."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],  # noqa: NPY002
        "modes": {name: module.training for name, module in p.model.named_modules()},
        "rates": {
            name: (m.p, m.inplace)
            for name, m in p.model.named_modules()
            if isinstance(m, nn.Dropout)
        },
        "settings": [
            (m.momentum, m.track_running_stats)
            for m in p.model.modules()
            if isinstance(m, nn.BatchNorm1d)
        ],
        "others": (p.model.body.lstm.dropout, p.model.body.attention.dropout),
        "buffers": {name: (id(b), b.tolist()) for name, b in p.model.named_buffers()},
        "parameters": {
            name: (id(x), x.tolist(), x.requires_grad) for name, x in p.model.named_parameters()
        },
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in p.model.modules()],
        "modes of torch": (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_num_threads(),
        ),
    }


def grads(p: Problem):
    return {name: None if g is None else (id(g), g.tolist()) for name, g in p.grads().items()}


@pytest.mark.parametrize("batch_norm", ["batch", "frozen"])
@pytest.mark.parametrize("training", [True, False])
def test_a_refresh_from_basis_losses_has_no_side_effects(batch_norm, training):
    p = noisy()
    p.model.train(training)
    p.model.body.norm.eval()
    primary, auxiliary = p.losses(), p.loss()
    before = snapshot(p)
    guide = Guide(p.model, eta=WEIGHTS, rank=3, batch_norm=batch_norm)
    report = guide.backward(primary=primary, auxiliary=auxiliary, basis_losses=p.losses)
    assert report.refreshed
    assert snapshot(p) == before


@pytest.mark.parametrize("basis", ["sketch", "exact"])
def test_a_refresh_from_primary_losses_has_no_side_effects(basis):
    p = noisy()
    primary, auxiliary = p.losses(), p.loss()
    before = snapshot(p)
    Guide(p.model, eta=WEIGHTS, rank=3, engine="loop", basis=basis).backward(
        primary=primary, auxiliary=auxiliary
    )
    assert snapshot(p) == before


BUFFERS = {
    "double": lambda: torch.randn(3, dtype=torch.float64),
    "half": lambda: torch.randn(3).bfloat16(),
    "count": lambda: torch.arange(3),
    "complex": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "every_other": lambda: torch.randn(6)[::2],
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "empty": lambda: torch.empty(0),
    "none": lambda: None,
}


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_of_every_kind_are_restored(kind):
    """They are copied in groups; some are shared with another module, or have a view of a part."""
    p = problem("cnn_batch_norm")
    model, other = p.model, nn.Identity()
    model.register_buffer("kept", BUFFERS[kind]())
    model.add_module("other", other)
    other.register_buffer("again", model.kept)
    if kind in ("double", "count"):
        other.register_buffer("part", model.kept[1:])

    def values():
        found = {}
        for name, b in model.named_buffers(remove_duplicate=False):
            dense = b.to_dense() if b.is_sparse else b
            found[name] = id(b), [x.tolist() for x in dense.unbind()] if b.ndim else b.tolist()
        return found

    def losses():
        with torch.no_grad():
            for buffer in (model.kept,) if kind not in ("none", "expanded", "empty") else ():
                buffer.mul_(2)
            model.body[1].num_batches_tracked.add_(1)
        return p.losses()

    primary, auxiliary = p.losses(), p.loss()
    before = values()
    Guide(model, eta=WEIGHTS, rank=3).backward(
        primary=primary, auxiliary=auxiliary, basis_losses=losses
    )
    assert values() == before


class Interruption(Exception):  # noqa: N818 - nothing went wrong
    pass


@pytest.mark.parametrize(("batch_norm", "has_grad"), [("batch", True), ("frozen", False)])
def test_an_error_in_the_middle_of_the_callable_leaves_no_trace(batch_norm, has_grad):
    p = noisy()
    guide = Guide(p.model, eta=WEIGHTS, rank=3, batch_norm=batch_norm)
    if has_grad:
        p.loss().backward()

    def interrupted():
        p.losses()
        torch.rand(3)
        random.random()
        raise Interruption

    primary, auxiliary = p.losses(), p.loss()
    before, before_grads = snapshot(p), grads(p)
    with pytest.raises(Interruption):
        guide.backward(primary=primary, auxiliary=auxiliary, basis_losses=interrupted)
    assert snapshot(p) == before
    assert grads(p) == before_grads

    # Nothing half-done stays behind: the next step is the same as if nothing had been interrupted.
    p.model.zero_grad()
    other = p.copy()
    for q, g in (
        (p, guide),
        (other, Guide(other.model, eta=WEIGHTS, rank=3, batch_norm=batch_norm)),
    ):
        primary, auxiliary = seeded(q)
        assert g.backward(primary=primary, auxiliary=auxiliary, basis_losses=q.losses).refreshed
    for name, g in other.grads().items():
        assert g is None or torch.equal(g, p.grads()[name]), name


def seeded(p: Problem):
    """Losses with the same dropout every time."""
    torch.manual_seed(0)
    return p.losses(), p.loss()


class AlwaysOn(nn.Module):
    """Functional dropout that does not ask for the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 6)

    def forward(self, x):
        h = F.alpha_dropout(F.dropout(self.enter(x), 0.5), 0.5, training=True)[:, None]
        return F.scaled_dot_product_attention(h, h, h, dropout_p=0.5)[:, 0]


@pytest.mark.parametrize(
    ("name", "body"),
    [("mlp", AlwaysOn), ("transformer", lambda: Transformer(dropout=0.5))],
    ids=["in a function", "in a fused layer"],
)
def test_dropout_is_off_inside_and_on_again_outside(name, body):
    p = problem(name)
    p.model.body = body()
    same = []

    def basis_losses():
        same.append(torch.equal(p.losses(), p.losses()))
        return p.losses()

    Guide(p.model, eta=WEIGHTS, rank=3).backward(
        primary=p.losses(), auxiliary=p.loss(), basis_losses=basis_losses
    )
    assert same == [True]
    assert not torch.equal(p.losses(), p.losses())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_norm", ["batch", "frozen"])
def test_batch_norm_chooses_batch_or_frozen_statistics(batch_norm, training):
    """``batch`` normalises the basis batch by itself; ``frozen`` keeps examples apart."""
    p = problem("cnn_batch_norm", torch.float64)
    for _ in range(3):
        p.losses()  # running statistics that match no batch
    p.model.train(training)
    primary, auxiliary = p.losses(), p.loss()
    reference = p.copy()
    reference.model.train(batch_norm == "batch")
    # The basis of the reference from its own forward, the gradients from the graphs above.
    names = expected(p.model, primary, auxiliary, eta=(1, 1, 1)).names
    V = expected_for(reference, eta=(1, 1, 1), rank=3).V
    want = expected(p.model, primary, auxiliary, eta=(1, 0.5, -1), basis=V)
    assert names == want.names
    guide = Guide(p.model, eta=WEIGHTS, rank=3, batch_norm=batch_norm)
    guide.backward(primary=primary, auxiliary=auxiliary, basis_losses=p.losses)
    assert error(p.grads(), want.grads) <= 1e-10
    if (batch_norm == "batch") != training:
        other = expected_for(p, eta=(1, 0.5, -1), rank=3)
        assert error(p.grads(), other.grads) > 1e-3  # the setting matters


def test_random_numbers_inside_come_from_seed_and_refresh():
    drawn = {}
    for run, (seed, user_seed) in enumerate([(0, 1), (0, 2), (9, 1)]):
        p = problem("mlp")
        guide = Guide(p.model, eta=WEIGHTS, rank=3, refresh_every=2, seed=seed)
        torch.manual_seed(user_seed)
        drawn[run] = []

        def basis_losses(p=p, run=run):
            drawn[run].append(torch.rand(4).tolist())
            return p.losses()

        for _ in range(4):
            torch.rand(user_seed)
            guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=basis_losses)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 2
    assert drawn[0][0] != drawn[0][1]
