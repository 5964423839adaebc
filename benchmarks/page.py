"""docs/performance.md and its plots from the committed results: `python -m benchmarks.page`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import every_figure, number, vectors
from benchmarks.goals import PEERS, Results, base_point, goals
from benchmarks.results import HERE, load
from benchmarks.workloads import SPECS

PAGE = HERE.parent / "docs" / "performance.md"
PLOTS = HERE.parent / "docs" / "performance"

ABOUT = (
    "This page is made by `python -m benchmarks.page` from `benchmarks/results/`; `make bench` measures anew. Ratios "
    "within one run are what to look at; seconds belong to the machine below."
)
COST = """\
## The cost model

F is the forward pass of one example, so that a backward pass is 2F; m primary and a auxiliary examples, rank k, D shared
parameters, a refresh every n steps. Traffic is counted in vectors of D float32.

| what | arithmetic | traffic |
|---|---|---|
| multitask step | 3F(m + a) | the optimizer's |
| ATTITTUD, a step between refreshes | the same | 2k + 9 |
| refresh, engines `loop` and `batched` | 2kFm | 11k |
| refresh, engine `hooks`, given `primary=` as a callable | 2Fm + 2kmD | 11k + 2m |
| refresh, engine `hooks`, given `basis_losses=` | 3Fm + 2kmD | 11k + 2m |
| refresh, the authors' algorithm | 3kFm | 2k + 3k²/2 |
| step, engine `implicit` | 3F(m + a), a pass over m examples, and K: m²D in float64 | a few, none with k |

* A step copies two gradients into flat vectors (4), takes both projections and all inner products in one pass over V
  (k + 2) and forms the whole update in another (k + 3).
* A refresh writes ΠJ (2k), orthonormalises (twice a read for the Gram matrix and a read and a write for the
  transformation, 6k), takes the new basis over unless a number is not finite (2k) and looks at the lengths of its rows
  (k). `hooks` also writes and reads the per-example gradients (2m), which live one layer long.
* `implicit` forms the gradients of m examples in float64, one layer after the other, for K.
* The mean step costs the step and a refresh / n. Memory above the multitask step is V and two gradients, at most k + 3
  vectors, and k more in a refresh. Nothing grows with m D.
"""

# Forward passes that a refresh is worth, by what it is given.
PASSES: dict[str, Callable[[int], int]] = {
    "loop": lambda k: 2 * k,
    "callable": lambda _: 2,
    "basis_losses": lambda _: 3,
}

MISSED = """\
## Where a goal is missed, and what limits it

* **WRN-22-4** is at its goal, on one side or the other by less than two runs differ by (below): an earlier run (revision
  2ca78dc) gave 1.099. At that goal a refresh may take 0.9 of a multitask step. With frozen BatchNorm it is a forward and
  a backward pass of 64 examples, a third of a multitask step, and the per-example gradients of convolutions. [A
  profile](../benchmarks/profiled.txt) of its kernels (revision 909855e) adds up to 4.8 ms; the dearest parts are copies
  of paddings and windows, 0.9 ms, and weighted sums of the gradients, 0.4 ms. Of `loop`'s 6.5 ms most is the five
  backward passes themselves.
* **Eager refreshes.** Those of `hooks`, and of all engines on small networks, are bound by launching kernels, not by the
  device. In CUDA graphs {eager}.{ahead}
  Between two runs eager ratios move by up to a half in either direction ("the same products" above and below 1.05
  alike); those of graphs repeat to two thousandths.
* **Projection and correction** read V twice but also read both gradients and write the update: (2k + 5) / 2k of the
  goal's own floor, so 1.5 is the floor itself for k = 5; over that floor they take {passes}.
* **Orthonormalisation** at k = 20 is bound by arithmetic: the profile shows its Gram matrices taking 4.6 times as long
  as at k = 10 for twice the memory traffic, while the transformation takes 2.1 times as long.
* **Memory in a refresh.** What exceeds 2k + 3 is not of the length of the model: workspaces of convolutions and
  per-example gradients of one layer (`hooks` on small networks), gradients of activations for as many rows as
  `batched` takes at once (large beside a D as small as LoRA's; `loop` and `hooks` do not have them).
* **Growth with m.** The bound asked for here is far below the activations that every backward pass holds per example;
  where it is missed, what grows is {growth} of those. Most of it is there with `loop` too, which never forms a gradient of
  one example: gradients of activations, on the LoRA decoder already between refreshes. `hooks` adds gradients of single
  examples, one layer at a time and at most two vectors of D (512 MB) at once: below that bound they grow with m.
"""

SETTING = (
    "Random weights and data, bf16 autocast, fused Adam, images in channels_last. Sweeps change k or m of that point; n is "
    "1, 4 and 10 everywhere."
)
LAUNCHES = (
    "The model counts neither launches nor Python: without a graph `hooks`, which does little arithmetic in many small kernels, "
    "is far above its prediction. Nor does it count the windows that convolutions lay out for `hooks`."
)


def page(results: Results) -> str:
    """The whole page."""
    parts = [
        "# What a step costs",
        ABOUT,
        in_short(results),
        machine(results),
        workloads(results),
        "## Goals",
        goal_table(results),
        missed(results),
        COST.rstrip(),
        "## Measured against predicted",
        predicted(results),
        "## All methods",
        methods(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_short(results: Results) -> str:
    """What a hurried reader wants to know: the goals on a whole training step, and how many of all are met."""
    judged = [goal for goal in goals(results) if goal.met is not None]
    if not judged:
        return ""
    first = [goal for goal in judged if goal.what.startswith(("mean step", "refresh against the authors'"))]
    lines = [f"* {goal.what[0].upper()}{goal.what[1:]}: {goal.measured}; the goal is {goal.goal}." for goal in first]
    count = f"* Of {len(judged)} goals in the table below {sum(goal.met is True for goal in judged)} are met; "
    return "\n".join(
        ["In short:", "", *lines, count + "[what limits the others](#where-a-goal-is-missed-and-what-limits-it)."]
    )


def machine(results: Results) -> str:
    lines = []
    later = [
        f"{job} {name} at {point['revision']}"
        for job, result in results.items()
        for name, point in result["points"].items()
        if point.get("revision", result["provenance"]["revision"]) != result["provenance"]["revision"]
    ]
    for about in {str(r["provenance"]): r["provenance"] for r in results.values()}.values():
        versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items() if value)
        hardware = about["hardware"].get("name", about["hardware"]["device"])
        lines.append(f"* {hardware}; {versions}; revision {about['revision']}; seed {about['seed']}.")
    if later:
        lines.append(f"* Measured later: {', '.join(later)}.")
    return "\n".join(["Measured on:", "", *sorted(set(lines))]) if lines else "No results have been committed yet."


def workloads(results: Results) -> str:
    """What the names stand for, with the sizes of their base points."""
    rows = []
    for job, spec in SPECS.items():
        points = results.get(job, {}).get("points", {})
        if points:
            data = max(points.values(), key=lambda point: len(point["methods"]))
            sizes = f"{data['m']} + {data['auxiliary']} | {data['D']:,} | {data['parameters']:,}"
            rows.append(f"| {job} | {spec.about} | {sizes} |")
    if not rows:
        return ""
    head = ["| workload | model | primary + auxiliary examples | D | all parameters |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, "", SETTING])


def goal_table(results: Results) -> str:
    sign = {True: "met", False: "**missed**", None: ""}
    rows = [f"| {g.what} | {g.goal} | {g.measured} | {sign[g.met]} |" for g in goals(results)]
    return "\n".join(["| what | goal | measured | |", "|---|---|---|---|", *rows])


def missed(results: Results) -> str:
    """Why, with the figures that say so."""
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
    judged = goals(results)
    shares = [g.share for g in judged if g.share is not None and g.met is False]
    return MISSED.format(
        eager=" and ".join(gains) or "not measured",
        ahead="".join(ahead),
        passes=", ".join(passes) or "not measured",
        growth=f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" if shares else "not measured",
    ).rstrip()


def predicted(results: Results) -> str:
    """Times from counted FLOPs and bytes, at the rate of the multitask step and the bandwidth of a copy in the same run."""
    rows = []
    for job in results:
        base = base_point(results, job) if job != "passes" else None
        if base is None:
            continue
        guesses = {mode: _guesses(base[1], mode) for mode in ("eager", "graph")}
        for method in guesses["eager"]:
            times = {mode: base[1]["methods"].get(method, {}).get(mode, {}) for mode in guesses}
            cells = []
            for mode, found in times.items():
                guess = guesses[mode].get(method)
                known = guess is not None and "refresh" in found
                measured = found["refresh"] - found["step"] if known else 0.0
                cells += (
                    [f"{1e3 * guess:.1f}", f"{1e3 * measured:.1f}", f"{measured / guess:.2f}"] if known else [""] * 3
                )
            if any(cells):
                rows.append(f"| {job} | {method} | {' | '.join(cells)} |")
    if not rows:
        return "Nothing measured yet."
    head = "| workload | refresh | predicted ms | measured ms | ratio | in a CUDA graph, predicted | measured | ratio |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows, "", LAUNCHES])


def _guesses(data: dict[str, Any], mode: str) -> dict[str, float]:
    """Seconds of a refresh by method, from the multitask step of the same mode."""
    multitask = data["methods"]["multitask"].get(mode, {}).get("step")
    if not multitask:
        return {}
    k, m, size, flops = data["k"], data["m"], data["D"], data["forward_flops_per_example"]
    rate = 3 * flops * (m + data["auxiliary"]) / multitask
    vector = 4 * size / data["copy_bytes_per_second"]
    orthonormal = (2 + 6 + 3) * k * vector
    passes = {name: count(k) * flops * m / rate for name, count in PASSES.items()}
    hooks = 2 * k * m * size / rate + orthonormal + 2 * m * vector
    return {
        "attittud loop": passes["loop"] + orthonormal,
        "attittud batched": passes["loop"] + orthonormal,
        "attittud hooks": passes["callable"] + hooks,
        "attittud hooks, frozen BatchNorm": passes["basis_losses"] + hooks,
        "authors' algorithm": 3 * k * flops * m / rate + (2 * k + 1.5 * k * k) * vector,
    }


def methods(results: Results) -> str:
    head = (
        "Step and refresh in milliseconds; the mean step over the multitask step for a refresh in every step, in every "
        "fourth and in every tenth; peak memory above the multitask step in vectors of D float32.\n\n"
        "| workload | point | method | mode | step | refresh | n = 1 | n = 4 | n = 10 | memory | in a refresh |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    rows = [
        f"| {f.job} | {f.point} | {f.method} | {f.mode} | {1e3 * f.step:.2f} | {number(f.refresh, 1e3)} | "
        f"{f.over[1]:.3f} | {f.over[4]:.3f} | {f.over[10]:.3f} | {vectors(f.memory_step)} | {vectors(f.memory_refresh)} |"
        for f in every_figure(results)
    ]
    notes = [
        f"* {job}, {point}, {name}{what}: {note}"
        for job, result in results.items()
        if job != "passes"
        for point, data in result["points"].items()
        for name, row in data["methods"].items()
        for what, note in [
            *([("", row["note"])] if "note" in row else []),
            *((f", {kind} as a graph", text) for kind, text in row.get("graph_notes", {}).items()),
        ]
    ]
    left_out = "\n\nNot measured, and why:\n\n" + "\n".join(notes) if notes else ""
    return head + "\n".join(rows) + left_out + images()


def images() -> str:
    found = sorted(path.name for path in PLOTS.glob("*.svg")) if PLOTS.is_dir() else []
    return "".join(f"\n\n![{Path(name).stem}](performance/{name})" for name in found)


def main() -> None:
    from benchmarks.plots import draw

    results = load()
    PAGE.parent.mkdir(exist_ok=True)
    draw(results, PLOTS)
    PAGE.write_text(page(results))
    print(f"wrote {PAGE} and {len(list(PLOTS.glob('*.svg'))) if PLOTS.is_dir() else 0} plots")


if __name__ == "__main__":
    main()
