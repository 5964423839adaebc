"""Why goals are missed, with the figures that say so."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import every_figure
from benchmarks.goals import PEERS, Results, base_point, goals, power

MISSED = """\
## Where a goal is missed, and what limits it

* **WRN-22-4** is at its goal, on one side or the other by less than two runs differ by (below): earlier runs gave
  1.100 (revision 909855e) and 1.099 (2ca78dc). At that goal a refresh may take 0.9 of a multitask step. With frozen
  BatchNorm it is a forward and a backward pass of 64 examples, a third of a multitask step, and the per-example
  gradients of convolutions. [A profile](../benchmarks/profiled.txt) of its kernels (revision 909855e) adds up to 4.8
  ms; the dearest parts are copies of paddings and windows, 0.9 ms, and weighted sums of the gradients, 0.4 ms. Of
  `loop`'s 6.5 ms most is the five backward passes themselves.
* **Eager refreshes.** Those of `hooks`, and of all engines on small networks, are bound by launching kernels, not by the
  device. In CUDA graphs {eager}.{ahead}
  Between two runs eager ratios move by up to a half in either direction ("the same products" above and below 1.05
  alike); those of graphs repeat to five thousandths.
* **Projection and correction** read V twice but also read both gradients and write the update: (2k + 5) / 2k of the
  goal's own floor, so 1.5 is the floor itself for k = 5; over that floor they take {passes}.
* **Orthonormalisation** at k = 20 is bound by arithmetic: the profile shows its Gram matrices taking 4.6 times as long
  as at k = 10 for twice the memory traffic, while the transformation takes 2.1 times as long. So all passes together
  grow with an exponent of {steep} from there on.
* **Smaller models** are further from both goals, because these passes are timed without a graph and launching them takes
  as long for any D: with k = 10 projection and correction take {small_step}, orthonormalisation {small_refresh}.
* **Memory in a refresh.** What exceeds 2k + 3 is not of the length of the model: workspaces of convolutions and
  per-example gradients of one layer (`hooks` on small networks), gradients of activations for as many rows as
  `batched` takes at once (large beside a D as small as LoRA's; `loop` and `hooks` do not have them).{beyond}
* **Growth with m.** The bound asked for here is far below the activations that every backward pass holds per example;
  where it is missed, what grows is {growth} of those. `loop`, which never forms a gradient of one example, has {with_loop}
  of what `hooks` has: gradients of activations, on the LoRA decoder already between refreshes. `hooks` adds gradients of single
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
        if (hooks := refreshes.get((job, "attittud hooks", "eager"), 0.0)) > theirs
        if (graph := refreshes.get((job, "attittud hooks", "graph")))
    ]
    points = list(results.get("passes", {}).get("points", {}).values())
    largest = max((p["D"] for p in points), default=0)
    passes = [
        f"{p['projection_and_correction_over_two_reads'] * 2 * p['k'] / (2 * p['k'] + 5):.2f} (k = {p['k']})"
        for p in points
        if p["D"] == largest
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
        steep=_steep(points, largest),
        small_step=_over(small, "projection_and_correction_over_two_reads", "two reads of V"),
        small_refresh=_over(small, "orthonormalise_over_its_traffic", "its traffic"),
        beyond=_beyond(results, bases),
        growth=_percent(shares),
        with_loop=_percent(of_loop),
    ).rstrip()


def _percent(shares: list[float]) -> str:
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" if shares else "not measured"


def _steep(points: list[dict[str, Any]], size: int) -> str:
    """The exponent of the last step in k, which that of the whole sweep would hide."""
    line = sorted((p["k"], sum(p["seconds"].values())) for p in points if p["D"] == size)
    return f"{power(*line[-2], *line[-1]):.2f}" if len(line) > 1 else "not measured"


def _over(points: list[dict[str, Any]], key: str, what: str) -> str:
    found = ", ".join(f"{p[key]:.2f} (D = {p['D']:,})" for p in points)
    return f"{found} times {what}" if found else "not measured"


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
