"""Why goals are missed, with the figures that say so."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import every_figure, in_a_graph
from benchmarks.goals import PEERS, Results, base_point, goals, power

HOOKS = ("attittud hooks", "attittud hooks, frozen BatchNorm")
MISSED = """\
## Where a goal is missed, and what limits it

* **Eager refreshes.** Those of `hooks`, and of all engines on small networks, are bound by launching kernels, not by the
  device. In CUDA graphs {eager}.{ahead}
  Between two runs eager ratios move by up to a half in either direction ("the same products" above and below 1.05
  alike), so that the count of goals met moves too; those of graphs repeat to about a hundredth.
* **Projection and correction** read V twice but also read both gradients and write the update: (2k + 5) / 2k of the
  goal's own floor, so 1.5 is the floor itself for k = 5; over that floor they take {passes} in a graph. So k = 5 is at its
  goal there, on one side or the other by less than two runs differ by (the copy is timed eagerly in both rows). Without a
  graph {launched} ms come on top for any D and k: launches and Python.
* **Orthonormalisation** at k = 20 is not bound by memory: [the profile](../benchmarks/profiled.txt) shows its Gram
  matrices taking 4.6 times as long as at k = 10 for twice the traffic, while the transformation takes 2.1 times as long. In
  float64 a thread cannot hold the sums of all pairs of more than 11 rows, and the kernel for more multiplies 260 pairs of
  a column where 210 differ; at k = 10 there are 55. So all passes together grow with an exponent of {flat} from k = 5 to 10
  and of {steep} from 10 to 20.
* **Smaller models.** Launching takes as long for any D, and so do the small kernels that remain in a graph. There, with
  k = 10, projection and correction take {small_step},
  orthonormalisation {small_refresh}; eager they take {small_step_eager}, and {small_refresh_eager}.
* **Memory in a refresh.** What exceeds 2k + 3 is not of the length of the model. On ResNet-18 every engine has it: by their
  sizes, gradients of activations and workspaces of convolutions. `batched` has gradients of activations for as many rows as
  it takes at once: large beside a D as small as LoRA's, and with sequences of 512. `hooks` has gradients of single examples
  of one layer; for a convolution with up to ten rows instead sums that programs add up at the end (at most 2.2 MB times k),
  with more rows windows too. For the LoRA decoder with more examples see the growth with m.{beyond}
* **Growth with m.** The bound asked for here is far below the activations that every backward pass holds per example;
  where it is missed, what grows is {growth} of those. `loop`, which never forms a gradient of one example, has {with_loop}
  of what `hooks` has: gradients of activations, in part already between refreshes. `hooks` adds gradients of single
  examples, one layer at a time and at most two vectors of D (512 MB) at once: below that bound they grow with m.
"""


def missed(results: Results) -> str:
    """The section of the page."""
    found = every_figure(results)
    bases = {(job, base[0]) for job in results if job != "passes" and (base := base_point(results, job))}
    refreshes = {(f.job, f.method, f.mode): f.refresh for f in found if (f.job, f.point) in bases and f.refresh}
    gains = []
    for engine in ("hooks", "loop"):
        ratios = {
            refreshes[job, method, "eager"] / time: job
            for (job, method, mode), time in refreshes.items()
            if mode == "graph" and method.startswith(f"attittud {engine}")
        }
        ends = [f"{ratio:.1f} ({ratios[ratio]})" for ratio in (min(ratios), max(ratios))] if ratios else []
        gains += [f"`{engine}` takes {' to '.join(ends)} times less"] if ends else []
    ahead = [
        f"\n  {peer} takes {1e3 * theirs:.0f} ms on {job}, `hooks` {1e3 * hooks:.0f} ms and in a graph {1e3 * graph:.0f} ms."
        for (job, peer, mode), theirs in refreshes.items()
        if peer in PEERS and mode == "eager"
        for ours in HOOKS
        if (hooks := refreshes.get((job, ours, "eager"), 0.0)) > theirs
        if (graph := refreshes.get((job, ours, "graph")))
    ]
    points = list(results.get("passes", {}).get("points", {}).values())
    largest = max((p["D"] for p in points), default=0)
    passes = [
        f"{p['graph']['projection_and_correction_over_two_reads'] * 2 * p['k'] / (2 * p['k'] + 5):.2f} (k = {p['k']})"
        for p in points
        if p["D"] == largest and "graph" in p
    ]
    launched = [
        1e3 * sum(p["eager"]["seconds"][name] - p["graph"]["seconds"][name] for name in ("projection", "correction"))
        for p in points
        if "graph" in p
    ]
    small = sorted((p for p in points if p["k"] == 10 and p["D"] != largest), key=lambda p: p["D"])
    growth = [(g.met, *g.growth) for g in goals(results) if g.growth]
    shares = [share for met, *_, share in growth if met is False]
    of_hooks = {
        job: share for met, job, method, share in growth if met is False and method.startswith("attittud hooks")
    }
    of_loop = [
        share / of_hooks[job] for _, job, method, share in growth if method == "attittud loop" and job in of_hooks
    ]
    return MISSED.format(
        eager=" and ".join(gains) or "not measured",
        ahead="".join(ahead),
        passes=", ".join(passes) or "not measured",
        launched=f"{min(launched):.2f} to {max(launched):.2f}" if launched else "not measured",
        steep=_exponent(points, largest, -2),
        flat=_exponent(points, largest, 0),
        small_step=_over(small, "graph", "projection_and_correction_over_two_reads", " times two reads of V"),
        small_refresh=_over(small, "graph", "orthonormalise_over_its_traffic", " times its traffic"),
        small_step_eager=_over(small, "eager", "projection_and_correction_over_two_reads"),
        small_refresh_eager=_over(small, "eager", "orthonormalise_over_its_traffic"),
        beyond=_beyond(results, bases),
        growth=_percent(shares),
        with_loop=_percent(of_loop),
    ).rstrip()


def _percent(shares: list[float]) -> str:
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" if shares else "not measured"


def _exponent(points: list[dict[str, Any]], size: int, step: int) -> str:
    """Of one step in k, which that of the whole sweep would hide."""
    line = sorted((p["k"], sum(in_a_graph(p).values())) for p in points if p["D"] == size)
    return f"{power(*line[step], *line[step + 1]):.2f}" if len(line) > 2 else "not measured"


def _over(points: list[dict[str, Any]], mode: str, key: str, what: str = "") -> str:
    found = ", ".join(f"{p[mode][key]:.2f} (D = {p['D']:,})" for p in points if mode in p)
    return f"{found}{what}" if found else "not measured"


def _beyond(results: Results, bases: set[tuple[str, str]]) -> str:
    """The limits of memory at the points that the table of goals leaves out."""
    others = [
        (f, results[f.job]["points"][f.point]["k"])
        for f in every_figure(results)
        if (f.job, f.point) not in bases and f.mode == "eager" and f.method.startswith("attittud")
        if f.memory_step is not None and f.memory_refresh is not None
    ]
    if not others:
        return ""
    steps = [f"{f.job} {f.point}, {f.method}: {f.memory_step:.1f}" for f, k in others if (f.memory_step or 0) > k + 3]
    refreshes = sum((f.memory_refresh or 0) > 2 * k + 3 for f, k in others)
    return (
        f"\n  The other points of the sweeps are not in the table: of their {len(others)} pairs with an engine {refreshes} "
        f"exceed 2k + 3 in a refresh\n  and {len(steps)} exceed k + 3 between refreshes"
        + (f" ({'; '.join(steps)})." if steps else ".")
    )
