"""Steps captured in CUDA graphs, and steps of compiled models, on a GPU."""

import copy

import pytest
import torch

from attittud import Guide
from tests.helpers.on_gpu import DEVICE, ETA, Convolutions, Perceptron, Run, close

pytestmark = pytest.mark.gpu


def captured(run, refresh, **arguments):
    """The step as a graph; the caller has warmed it up."""
    graph = torch.cuda.CUDAGraph()
    run.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        report = run.step(refresh, **arguments)
    return graph, report


def warm_up(run, schedule, **arguments):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for refresh in schedule:
            run.step(refresh, **arguments)
    torch.cuda.current_stream().wait_stream(stream)


def replay_equals_eager(model, refreshes, **settings):
    torch.manual_seed(0)
    eager = Run(model(), **settings)
    graphed = Run(copy.deepcopy(eager.model), **settings)
    schedule = [True, False, refreshes, False]
    for run in (eager, graphed):
        warm_up(run, schedule)
    graphs = {refresh: captured(graphed, refresh) for refresh in {False, refreshes}}
    for seed, refresh in enumerate([False, refreshes, False, refreshes, refreshes, False], start=1):
        for run in (eager, graphed):
            run.load(seed)
        want = eager.step(refresh).to_dict()
        graph, report = graphs[refresh]
        graph.replay()
        close(graphed.parameters(), eager.parameters(), 1e-4)
        got = report.to_dict()
        assert got["effective_rank"] == want["effective_rank"]
        assert got["helpful"] == pytest.approx(want["helpful"], rel=1e-2, abs=1e-6)
    if refreshes:
        assert int(graphed.guide._schedule.index) == int(eager.guide._schedule.index)


@pytest.mark.parametrize(
    ("basis", "include_mean"), [("sketch", True), ("svd", False), ("canonical", False)]
)
def test_captured_step_equals_eager(basis, include_mean):
    replay_equals_eager(Perceptron, False, basis=basis, include_mean=include_mean)


@pytest.mark.parametrize("basis", ["sketch", "mean", "exact"])
def test_captured_refresh_equals_eager(basis):
    replay_equals_eager(Perceptron, True, basis=basis, engine="loop")


def test_captured_refresh_of_convolutions_by_hooks_equals_eager():
    """In half precision, where a kernel reads windows in the input."""
    torch.manual_seed(0)
    eager = Run(Convolutions().eval(), engine="hooks")
    graphed = Run(copy.deepcopy(eager.model), engine="hooks")
    with (
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
        torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False),
    ):
        for run in (eager, graphed):
            warm_up(run, [True, True, False])
        graph, _ = captured(graphed, True)
        for seed in (1, 2):
            for run in (eager, graphed):
                run.load(seed)
            eager.step(True)
            graph.replay()
            close(graphed.guide.subspace.rows, eager.guide.subspace.rows, 1e-4)
            close(graphed.parameters(), eager.parameters(), 1e-4)


def test_captured_step_with_judges_equals_eager():
    """Judges in one graph, none in the other; weights live on the device between them."""
    torch.manual_seed(0)
    settings = {"eta": "auto", "judge_every": 1}
    eager = Run(Perceptron(), **settings)
    graphed = Run(copy.deepcopy(eager.model), **settings)
    for run in (eager, graphed):
        warm_up(run, [True, False, False], judge=lambda run=run: run.losses()[:8] * 2)
    graphs = {
        judged: captured(
            graphed, False, **({"judge": lambda: graphed.losses()[:8] * 2} if judged else {})
        )[0]
        for judged in (True, False)
    }
    for seed, judged in enumerate([False, True, False, True, True], start=1):
        for run in (eager, graphed):
            run.load(seed)
        eager.step(False, **({"judge": lambda: eager.losses()[:8] * 2} if judged else {}))
        graphs[judged].replay()
        close(graphed.parameters(), eager.parameters(), 1e-4)
        got, want = (run.guide._auto.scores["auxiliary"] for run in (graphed, eager))
        close(got.moments, want.moments, 1e-3)


def test_captured_refresh_with_nan_keeps_the_basis():
    run = Run(Perceptron(), engine="loop")
    warm_up(run, [True, False, True])
    graph, _ = captured(run, True)
    before = run.guide.subspace.rows.clone()
    run.xp.fill_(torch.nan)
    graph.replay()
    assert torch.equal(run.guide.subspace.rows, before)
    assert int(run.guide._schedule.skipped) == 1


def guided(run, given, refresh):
    """A step with more forward passes than two, or with its parts called one by one."""
    run.optimizer.zero_grad(set_to_none=True)
    if given == "verbs":
        run.guide.primary(run.losses(), refresh=refresh)
        run.guide.auxiliary(run.loss())
        run.guide.combine()
    else:
        more = {given: lambda: run.losses() * 2}
        run.guide.backward(run.losses(), run.loss(), refresh=refresh, **more)
    run.optimizer.step()


def in_its_mode(mode, engine, step, **settings):
    """Steps of a compiled model against steps of its twin."""
    torch.manual_seed(0)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    plain = Run(Perceptron(), engine="loop", **settings)
    twin = copy.deepcopy(plain.model)
    run = Run(twin, engine=engine, **settings)
    # fullgraph: a graph break would be an error.
    run.model = torch.compile(twin, mode=mode, fullgraph=True)
    run.guide = Guide(
        run.model, **{"eta": ETA, "primary_weight": 0.3, "rank": 4, "engine": engine, **settings}
    )
    for seed, refresh in enumerate([True, False, False, True, False, True, True, False]):
        for each in (plain, run):
            each.load(seed)
            step(each, refresh)
        close(run.parameters(), plain.parameters(), 1e-4)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.filterwarnings("ignore")  # the compiler has its own
@pytest.mark.parametrize(
    ("mode", "engine"),
    [("default", "auto"), ("reduce-overhead", "loop"), ("reduce-overhead", "hooks")],
)
def test_compiled_model_keeps_its_mode(mode, engine):
    in_its_mode(mode, engine, Run.step)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("given", "engine"),
    [("judge", "loop"), ("basis_losses", "loop"), ("basis_losses", "hooks"), ("verbs", "loop")],
)
def test_compiled_model_keeps_its_mode_whatever_a_step_is_given(given, engine):
    """Earlier forward passes use the same memory, and some backward passes are still to come."""
    settings = {"eta": "auto", "judge_every": 2} if given == "judge" else {}
    in_its_mode(
        "reduce-overhead", engine, lambda run, refresh: guided(run, given, refresh), **settings
    )
