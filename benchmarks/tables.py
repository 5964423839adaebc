"""docs/appendix/performance/tables.md: all figures behind docs/cost.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.eager import RARE
from benchmarks.figures import Results, base_point, every_figure, number, vectors
from benchmarks.workloads import SPECS

COST = """\
## The cost model

F is the arithmetic of one example's forward pass, so a backward pass is 2F. A step has m primary examples and *a* auxiliary
examples; k is the rank, D the number of shared parameters, and every n-th step refreshes. Traffic is counted in vectors of D
float32.

| what | arithmetic | traffic |
|---|---|---|
| multitask step | 3F(m + a) | the optimizer's |
| ATTITTUD, a step between refreshes | the same | 2k + 9 |
| refresh, engine `loop` | 2kFm | 11k |
| refresh, engine `hooks`, given `primary=` as a callable | 2Fm (Fm if m is a power of two) + 2kmD | 11k + 2m |
| refresh, engine `hooks`, given `basis_losses=` | 3Fm + 2kmD | 11k + 2m |
| refresh, the authors' algorithm | 3kFm | 2k + 3k²/2 |

* A step copies two gradients into flat vectors (4). It takes both projections and all inner products in one pass over V
  (k + 2), and forms the whole update in another pass (k + 3).
* A refresh writes ΠJ (2k) and orthonormalises it (6k). Orthonormalising takes two rounds; each round reads the rows for the
  Gram matrix, then reads and writes them for the transformation. The refresh then takes over the
  new basis unless a number is not finite (2k), and measures the lengths of its rows (k).
* `hooks` also writes and reads the per-example gradients of one layer at a time (2m). The per-example gradients of 2-d
  convolutions in half precision, with k ≤ 10, never leave the processor.
* The mean step costs a step plus 1/n of a refresh. Memory above the multitask step is V, two gradients and at most one more
  vector, so at most k + 3 vectors, and k more in a refresh. Only the per-example gradients of `hooks` grow with
  m D, up to a bound.
"""

# Forward passes that a refresh is worth, from k and m, by what it is given.
PASSES: dict[str, Callable[[int, int], int]] = {
    "loop": lambda k, _: 2 * k,
    "callable": lambda _, m: 1 if m.bit_count() == 1 else 2,
    "basis_losses": lambda *_: 3,
}

SETTING = (
    "All have random weights and data, bf16 autocast, fused Adam, and images in channels_last. k is the rank, m the number of "
    "examples behind the basis, and every n-th step refreshes. Sweeps change k or m (column *point* of [All "
    "methods](#all-methods)); n is 1, 4 and 10 everywhere."
)
TORCHJD_STEP = "TorchJD computes rows of ΠJ. The rest of that step is our own code in plain torch, slower than a guide's."
CYCLES = (
    "In CUDA graphs the mean steps of WRN-22-4 and of RoBERTa with 512 tokens were measured as whole cycles: a refresh and nine "
    "steps against ten multitask steps. All other mean steps are added up from the times of single steps."
)
ABOUT = (
    "`python -m benchmarks.page` makes this page from `benchmarks/results`. The short version is "
    "[What does a step cost?](../../cost.md)."
)
# Commits that results name and history does not have, and the commits that contain their work.
LOST = {"8aa7a14": "e785e95"}
LAUNCHES = (
    "The model counts neither kernel launches nor Python. `hooks` does little arithmetic in many small kernels, so without "
    "a graph it is above its prediction. (With LoRA it is far below, because the model counts gradients of frozen weights.)"
    " For `hooks` the model is also wrong about convolutions. In four cases (full precision, more than ten rows, groups, "
    "one or three dimensions) a convolution lays out its windows, which the model does not count. In all other cases a "
    "convolution never writes the gradients of single examples, which the model does count."
)


def tables(results: Results, plots: list[str]) -> str:
    """The whole page; `plots` are files in its folder."""
    parts = [
        "# All figures behind the performance page",
        ABOUT,
        "Measured on:",
        "\n".join(f"* {line}" for line in machines(results)),
        workloads(results),
        COST.rstrip(),
        "## Measured against predicted",
        predicted(results),
        "## All methods",
        methods(results),
        *(f"![{Path(name).stem}]({name})" for name in plots),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machines(results: Results) -> list[str]:
    """One sentence for each machine and its versions, with the revisions that were measured on
    it.
    """
    revisions_of: dict[str, set[str]] = {}
    for result in results.values():
        about = result["provenance"]
        versions = ", ".join(
            f"{name} {value}"
            for name, value in about["versions"].items()
            if value and name != "attittud"
        )
        machine = about["hardware"].get("name", about["hardware"]["device"])
        revisions = {
            point.get("revision") or about["revision"] for point in result["points"].values()
        }
        revisions_of.setdefault(f"{machine}; {versions}; seed {about['seed']}", set()).update(
            map(str, revisions)
        )
    lines = [
        f"{machine}; revision {', '.join(sorted(revisions))}."
        for machine, revisions in sorted(revisions_of.items())
    ]
    named = set().union(*revisions_of.values()) if revisions_of else set()
    lines += [
        f"Revision {r} was never published; {LOST[r]} contains its work."
        for r in sorted(named & LOST.keys())
    ]
    return lines or ["No results have been committed yet."]


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
    head = [
        "| workload | model | primary + auxiliary examples | D | all parameters |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, "", SETTING])


def predicted(results: Results) -> str:
    """Times from counted FLOPs and bytes, at the rate of the multitask step and the bandwidth of a
    copy in the same run.
    """
    rows = []
    for job in results:
        base = base_point(results, job) if job in SPECS else None
        if base is None:
            continue
        guesses = {mode: _guesses(base[1], mode) for mode in ("eager", "graph")}
        for method in guesses["eager"]:
            times = {mode: base[1]["methods"].get(method, {}).get(mode, {}) for mode in guesses}
            cells = []
            for mode, seconds_of in times.items():
                guess = guesses[mode].get(method)
                comparable = guess is not None and "refresh" in seconds_of
                measured = seconds_of["refresh"] - seconds_of["step"] if comparable else 0.0
                cells += (
                    [f"{1e3 * guess:.1f}", f"{1e3 * measured:.1f}", f"{measured / guess:.2f}"]
                    if comparable
                    else [""] * 3
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
    k = data["k"]
    m = data["m"]
    size = data["D"]
    flops = data["forward_flops_per_example"]
    rate = 3 * flops * (m + data["auxiliary"]) / multitask
    vector = 4 * size / data["copy_bytes_per_second"]
    orthonormal = (2 + 6 + 3) * k * vector
    passes = {name: count(k, m) * flops * m / rate for name, count in PASSES.items()}
    hooks = 2 * k * m * size / rate + orthonormal + 2 * m * vector
    return {
        "attittud loop": passes["loop"] + orthonormal,
        "attittud hooks": passes["callable"] + hooks,
        "attittud hooks, frozen BatchNorm": passes["basis_losses"] + hooks,
        "authors' algorithm": 3 * k * flops * m / rate + (2 * k + 1.5 * k * k) * vector,
    }


def rounds(results: Results) -> str:
    """How many times eager steps were measured."""
    counts_of: dict[bool, list[int]] = {False: [], True: []}
    for data in results.get("eager", {}).get("points", {}).values():
        for name, row in data["methods"].items():
            if "rounds" in row:
                counts_of[name in RARE].append(row["rounds"])
    if not all(counts_of.values()):
        return ""
    usual, rare = (f"{min(counts)} to {max(counts)}" for counts in counts_of.values())
    return (
        f" Eager figures are medians over {usual} rounds, those of {', '.join(RARE)} over {rare}."
    )


def methods(results: Results) -> str:
    head = (
        "Step and refresh are in milliseconds. The columns n = 1, 4 and 10 have the mean step divided by the multitask step, "
        "with a refresh every n steps. For eager steps that were measured in rounds, this is the median over the multitask steps "
        "next to each step, which differs from the quotient of the medians. Memory is the peak above the multitask step, in "
        "vectors of D float32.\n\n"
        "| workload | point | method | mode | step | refresh | n = 1 | n = 4 | n = 10 | memory | in a refresh |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    head = f"{TORCHJD_STEP}{rounds(results)} {CYCLES}\n\n{head}"
    rows = [
        f"| {f.job} | {f.point} | {f.method} | {f.mode} | {1e3 * f.step:.2f} | {number(f.refresh, 1e3)} | "
        f"{f.over[1]:.3f} | {f.over[4]:.3f} | {f.over[10]:.3f} | {vectors(f.memory_step)} | {vectors(f.memory_refresh)} |"
        for f in every_figure(results)
    ]
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for job, result in results.items():
        for point, data in result["points"].items() if job in SPECS else ():
            for name, row in data["methods"].items():
                noted = [(name, row["note"])] if "note" in row else []
                noted += (
                    [(name, f"it uses the engine of {row['same_as']}")] if "same_as" in row else []
                )
                noted += [
                    (f"{name}, {kind} as a graph", text)
                    for kind, text in row.get("graph_notes", {}).items()
                ]
                for what, note in noted:
                    reasons.setdefault((job, what, note), []).append(point)
    notes = [
        f"* {job}, {what} ({', '.join(points)}): {note}"
        for (job, what, note), points in reasons.items()
    ]
    left_out = "\n\nNot measured, and why:\n\n" + "\n".join(notes) if notes else ""
    return head + "\n".join(rows) + left_out
