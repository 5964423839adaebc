"""docs/performance.md and its plots from the committed results: `python -m benchmarks.page`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import every_figure, number, vectors
from benchmarks.goals import Results, base_point, goals
from benchmarks.limits import missed
from benchmarks.results import HERE, load
from benchmarks.workloads import SPECS

PAGE = HERE.parent / "docs" / "performance.md"
PLOTS = HERE.parent / "docs" / "performance"

ABOUT = (
    "This page is made by `python -m benchmarks.page` from `benchmarks/results/`, where `make bench` measures what is missing "
    "(`python -m benchmarks --out` an empty folder: all of it). Ratios within one run are what to look at; seconds belong to the "
    "machine below."
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
  (k). `hooks` also writes and reads the per-example gradients (2m), which live one layer long; those of 2-d convolutions
  in half precision, with k ≤ 10, never leave the processor.
* `implicit` forms the gradients of m examples in float64, one layer after the other, for K.
* The mean step costs the step and a refresh / n. Memory above the multitask step is V and two gradients, at most k + 3
  vectors, and k more in a refresh. Nothing grows with m D but the per-example gradients of `hooks`, up to a bound.
"""

# Forward passes that a refresh is worth, by what it is given.
PASSES: dict[str, Callable[[int], int]] = {
    "loop": lambda k: 2 * k,
    "callable": lambda _: 2,
    "basis_losses": lambda _: 3,
}

SETTING = (
    "Random weights and data, bf16 autocast, fused Adam, images in channels_last. Sweeps change k or m of that point; n is "
    "1, 4 and 10 everywhere."
)
CYCLES = (
    'Mean steps are those of a whole cycle, a refresh and nine steps against ten multitask steps; under "All methods" they are '
    "added up from the times of single ones."
)
# Commits that results name and history does not have, and those their work came in with.
ANEW = {"8aa7a14": "e785e95"}
LAUNCHES = (
    "The model counts neither launches nor Python: without a graph `hooks`, which does little arithmetic in many small kernels, "
    "is far above its prediction. Nor does it count the windows that convolutions lay out for `hooks` in full precision or "
    "with more than ten rows, with groups, or in one or three dimensions; all others write no gradients of single examples, "
    "which it does count."
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
    named = {point.get("revision") for result in results.values() for point in result["points"].values()}
    lost = named & ANEW.keys()
    lines += [f"* Revision {r} was lost before it was published; its work came in with {ANEW[r]}." for r in lost]
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
    return "\n".join(["| what | goal | measured | |", "|---|---|---|---|", *rows, "", CYCLES])


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
