"""The arithmetic of a step as a CUDA graph gives the same bits, and spares the user's tensors."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.basis import captured
from attittud.basis.captured import ALIKE, CapturedUpdate
from attittud.step import gradients as gradients_module
from attittud.step import step as step_module

EXAMPLES = 12
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def network(device, *, channels_last=False, width=None):
    torch.manual_seed(0)
    # On a GPU torch keeps vectors from 1 MB on apart from small tensors, so what a test keeps does
    # not move them.
    width = width or (6 if device == "cpu" else 4_000)
    body = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 5, 3), nn.Flatten())
    model = nn.ModuleDict(
        {"body": body, "primary": nn.Linear(80, 3), "other": nn.Linear(80, 2)}
    ).to(device)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def batch(number, device):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(12, 3, 8, 8, generator=generator)
    y = torch.randint(3, (12,), generator=generator)
    return x[:EXAMPLES].to(device), y[:EXAMPLES].to(device)


def losses(model, number):
    parameter = next(model.parameters())
    x, y = batch(number, parameter.device)
    x = x.to(parameter.dtype)
    features = model["body"](x)
    return F.cross_entropy(model["primary"](features), y, reduction="none"), model["other"](
        model["body"](x.flip(0))
    )


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """A stand-in for a graph on a CPU, with everything but the gradients as it was captured."""
    if request.param == "cpu":

        def played(_, work, vectors):
            before = [(tensor, tensor.clone()) for tensor in [*work.changes, *vectors]]
            numbers = work.compute(vectors)
            for tensor, old in before:  # under capture kernels do not run
                tensor.copy_(old)
            changed = [(tensor, tensor.clone()) for tensor in work.changes]

            def replay():
                """Does again what was captured, to the gradients at the same addresses."""
                with _disable_current_modes():
                    for tensor, old in changed:
                        old.copy_(tensor)
                    numbers.vector.copy_(work.compute(current[-1]).vector)

            return captured.Captured(SimpleNamespace(replay=replay), numbers, changed)

        def noted(self, work, vectors):
            current.append(vectors)
            try:
                return run(self, work, vectors)
            finally:
                current.clear()

        current, run = [], CapturedUpdate.run
        monkeypatch.setattr(CapturedUpdate, "run", noted)
        monkeypatch.setattr(CapturedUpdate, "_capture", played)
        # Addresses that do not change, as in a steady loop on a GPU.
        monkeypatch.setattr(captured, "_addresses", lambda vectors: tuple(range(len(vectors))))
        monkeypatch.setattr(Layout, "on_gpu", True)
        for module in (gradients_module, step_module):
            monkeypatch.setattr(
                module, "is_small", lambda layout: 4 * layout.size <= captured.LARGEST
            )
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    # Another test of the process may have compiled a model, after which steps are not captured.
    monkeypatch.setattr(step_module, "in_cuda_graphs", lambda: False)
    # two runs are compared bit by bit
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    return request.param


def served(monkeypatch):
    """Counts the steps that a graph finished."""
    found = []
    run = CapturedUpdate.run

    def counted(*given):
        done = run(*given)
        found.extend([] if done is None else [1])
        return done

    monkeypatch.setattr(CapturedUpdate, "run", counted)
    return found


def assert_served(count, steps, device):
    """On a GPU torch may put the gradients of some steps elsewhere."""
    assert len(count) == steps if device == "cpu" else steps // 2 <= len(count) <= steps, len(count)


def train(model, *, steps=25, never=False, before=None, judged=None, **options):
    """Gradients and reports of some steps; `never`: without a graph, `judged`: eta="auto"."""
    options = options if judged is None else {"eta": "auto", "judge_every": 3} | options
    guide = Guide(model, **({"eta": Eta(1, 0.5, -1), "rank": 4, "refresh_every": 7} | options))
    # The networks on a GPU are wide, so they need smaller steps.
    small = next(model.parameters()).device.type == "cpu"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if small else 1e-4, momentum=0.9)
    found = []
    for number in range(steps):
        if before is not None:
            before(number, model, guide)
        if never:
            guide._parts.captured.forget()
        optimizer.zero_grad()
        primary, auxiliary = losses(model, number)
        judge = None if judged is None else lambda number=number: judged(model, number)
        report = guide.backward(primary, auxiliary.square().mean(), judge=judge)
        found.append(
            ([None if p.grad is None else p.grad.clone() for p in model.parameters()], report)
        )
        optimizer.step()
    return [(gradients, report.to_dict()) for gradients, report in found]


def assert_same(ours, plain):
    for number, ((mine, my_report), (theirs, their_report)) in enumerate(
        zip(ours, plain, strict=True)
    ):
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) == (b is None) and (a is None or torch.equal(a, b)), number
        assert my_report == their_report, number


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"include_mean": True},
        {"basis": "mean", "primary_weight": 0.0},
        {"auxiliary_weight": 0.3, "basis": "svd"},
    ],
    ids=str,
)
def test_bits_and_reports_are_the_same_without_a_graph(device, options, monkeypatch):
    count = served(monkeypatch)
    ours = train(network(device), **options)
    assert_served(count, 25 - ALIKE, device)  # refreshes too
    assert_same(ours, train(network(device), never=True, **options))


def judges(model, number):
    """Some of them like the auxiliary loss, so that weights are earned."""
    own, auxiliary = losses(model, number + 100)
    return own + 5 * auxiliary.square().mean(1)


@pytest.mark.parametrize(
    "options",
    [{"include_mean": True}, {"judge_every": 1}],
    ids=str,
)
def test_weights_of_eta_auto_are_bitwise_the_same_without_a_graph(device, options, monkeypatch):
    """Steps that ask the judges have a graph of their own, which changes the weights."""
    count = served(monkeypatch)
    ours = train(network(device), judged=judges, steps=35, **options)
    assert_served(count, 35 - ALIKE * (1 if options.get("judge_every") == 1 else 2), device)
    plain = train(network(device), judged=judges, steps=35, never=True, **options)
    assert_same(ours, plain)
    assert len({report["weight_neutral"] for _, report in plain}) > 2


def test_changes_between_steps_take_effect(device, monkeypatch):
    def change(number, model, guide):
        if number == 9:
            guide.eta = Eta(0.2, 1, 0)
        if number == 12:
            guide.primary_weight = 0.5
        if number == 15:
            model["body"][2].bias.requires_grad_(False)
        if number == 18:
            model["body"][2].bias.requires_grad_(True)
        if number == 20:
            model["body"][0].weight = nn.Parameter(model["body"][0].weight.detach() * 0.5)
        if number == 25:
            guide.auxiliary_weight = 0.3
        if number == 30:
            guide.include_mean = True

    count = served(monkeypatch)
    assert_same(
        train(network(device), steps=35, before=change),
        train(network(device), steps=35, before=change, never=True),
    )
    assert count


def test_a_new_basis_is_noticed_even_at_the_address_of_the_old_one(device, monkeypatch):
    """Loaded twice, a basis and its layout may lie where the first ones were, in other strides."""

    def change(number, model, guide):
        if number == 5:
            model.to(memory_format=torch.channels_last)
            for _ in range(4):
                guide.load_state_dict(guide.state_dict())

    count = served(monkeypatch)
    ours = train(network(device), before=change, refresh_every=100)
    assert_served(count, 25 - 2 * ALIKE, device)
    assert_same(ours, train(network(device), before=change, refresh_every=100, never=True))


def test_steps_run_without_a_graph_if_torch_cannot_capture(device, monkeypatch):
    def captures(_, work, vectors):
        tried.append(1)
        with monkeypatch.context() as idle:  # under capture kernels do not run
            idle.setattr(gradients_module, "lift_", lambda rows, weights, x, *others: x)
            work.compute(vectors)
        raise RuntimeError("operation not permitted")

    count, tried = served(monkeypatch), []
    plain = train(network(device), never=True)
    monkeypatch.setattr(CapturedUpdate, "_capture", captures)
    assert_same(train(network(device)), plain)
    assert not count and len(tried) == 1


def wandering(monkeypatch, where):
    """Let gradients of step number i lie at the addresses where(i)."""
    number = count()
    monkeypatch.setattr(captured, "_addresses", lambda vectors: (where(next(number)), len(vectors)))


@pytest.mark.parametrize("different", [captured.MOST + 3, 70])
def test_few_graphs_are_kept_and_none_is_captured_again_and_again(different, monkeypatch, device):
    if device != "cpu":
        pytest.skip("only the stand-in can choose addresses")
    wandering(monkeypatch, lambda number: number % different)
    guides, captures = [], []
    capture = CapturedUpdate._capture
    monkeypatch.setattr(
        CapturedUpdate, "_capture", lambda *given: captures.append(1) or capture(*given)
    )
    train(
        network(device),
        steps=240,
        refresh_every=1000,
        before=lambda *given: guides.append(given[2]),
    )
    kept = captured.MOST if different < 64 else 0
    assert len(captures) == kept
    assert len(guides[0]._parts.captured._graphs) == kept
    assert len(guides[0]._parts.captured._counts) <= 65


@pytest.mark.gpu
def test_a_graph_of_the_user_and_a_graph_of_the_guide_do_not_interfere():
    """A step captured as a whole holds the arithmetic itself; the guide's own graph goes on."""
    model = network("cuda")
    guide = Guide(model, eta=Eta(1, 1, -1), rank=3, refresh_every=1000)
    x, y = batch(0, "cuda")

    def step():
        for p in model.parameters():
            p.grad = None
        primary = F.cross_entropy(model["primary"](model["body"](x)), y, reduction="none")
        guide.backward(
            primary, model["other"](model["body"](x.flip(0))).square().mean(), refresh=False
        )

    primary, auxiliary = losses(model, 0)
    guide.backward(primary, auxiliary.square().mean())
    del primary, auxiliary  # their graph would keep nodes that belong to another stream
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(ALIKE + 3):
            step()
    torch.cuda.synchronize()
    expected = [p.grad.clone() for p in model.parameters()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    inside = [p.grad for p in model.parameters()]
    for gradient in inside:
        gradient.zero_()
    graph.replay()
    assert all(map(torch.equal, inside, expected))
    step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("eta", [Eta(1, 1, -1), "auto"], ids=["fixed", "auto"])
def test_nothing_waits_for_the_device_and_memory_is_freed_afterwards(eta):
    x, y = batch(50, "cuda")

    def trained():
        # 6 MB, of which a basis and two gradients would be five times as much
        model = network("cuda", width=20_000)
        guide = Guide(model, eta=eta, rank=3, refresh_every=1000, judge_every=1)

        def judge():
            return F.cross_entropy(model["primary"](model["body"](x)), y, reduction="none")

        for number in range(ALIKE + 4):
            model.zero_grad()
            primary, auxiliary = losses(model, number)
            auxiliary = auxiliary.square().mean()
            torch.cuda.set_sync_debug_mode("error" if number else "default")
            try:
                guide.backward(primary, auxiliary, judge=judge if eta == "auto" else None)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert guide._parts.captured._graphs

    trained()  # from here on torch has the memory that it keeps for matrix products
    before = torch.cuda.memory_allocated()
    trained()
    assert torch.cuda.memory_allocated() <= before + 2**20
