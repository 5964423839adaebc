"""Make docs/cost.md, its tables and plots from the committed results: `python -m benchmarks.page`.

It also writes the figures that README.md, docs/training.md and docs/appendix/auto.md quote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.figures import (
    NAMES,
    TORCHJD,
    Figures,
    Results,
    base_point,
    default,
    every_figure,
    growth_with_k,
    ours,
)
from benchmarks.judges import overhead, overheads
from benchmarks.methods import MultitaskInOneThread
from benchmarks.quotes import update
from benchmarks.results import HERE, load
from benchmarks.tables import tables
from benchmarks.timing import FastCores

PAGE = HERE.parent / "docs" / "cost.md"
FOLDER = HERE.parent / "docs" / "appendix" / "performance"
TABLES = FOLDER / "tables.md"
WORDS = {"graph": "in CUDA graphs", "eager": "eager"}

ABOUT = """\
`python -m benchmarks.page` makes this page from `benchmarks/results`. The appendix has [all tables and a model of the
cost](appendix/performance/tables.md). Revision 69126ad5 of that page also has the goals that we had set: 48 of 66 were met.
"""
COST = """\
## Time and memory

A guided step runs two backward passes where multitask training runs one, and projects gradients onto k directions.
Every n-th step, a *refresh*, recomputes these directions from m primary examples. The table is for n = 10: eager (without
CUDA graphs of your own) with the default [engine](engines.md), `"auto"`, and in CUDA graphs with the fastest engine that does
not freeze BatchNorm. RoBERTa is the base model, with 128 or 512 tokens.

* "Plain" is the time of a step without a refresh, divided by the time of two backward passes without a guide: in torch's
  default threads / in the calling thread, as a guide's passes; the larger figure of `loop` and `hooks`.
* "Mean" is the time of an average step, divided by the time of multitask steps measured next to it (the median).
* Memory is the peak beyond that of multitask training, with `"auto"`: between refreshes / in a refresh.
"""
ADVICE = """\
## Which engine?

The table shows what a refresh adds to a step, in milliseconds, eager / in a CUDA graph.
"""
ENGINES = """\
* Leave `engine="auto"` and pass the primary losses as a callable ([why](engines.md)).
* `hooks` needs one backward pass for any k. Use it for transformers, LoRA and large models. With BatchNorm it needs
  `basis_losses=` and `batch_norm="frozen"`, as in the table.
* `loop` runs on everything, with little memory.
* Networks of small kernels wait for Python. CUDA graphs ([training.cuda_graph](training.md#speed), or your own capture) make
  their refreshes several times faster.
"""
GROWTH = """\
## How does it grow?

F counts the operations in the forward pass of one example, and D the shared parameters. Activations are not counted.

| | operations | reads and writes, in vectors of D | memory, in vectors of D |
|---|---|---|---|
| plain step | as multitask | 2k + 9 | k + 3 |
| refresh with `loop` | 2kFm | 11k | 2k + 3 |
| refresh with `hooks` | Fm to 3Fm, and 2kmD | 11k + 2m | 2k + 3 |
"""


def page(results: Results) -> str:
    """The short page."""
    parts = [
        "# What does a step cost?",
        ABOUT.rstrip(),
        f"Measured on {'; '.join(hardware(results))}." + cores(results),
        COST.rstrip(),
        costs(results),
        notes(results),
        ADVICE.rstrip(),
        refreshes(results),
        ENGINES.rstrip(),
        GROWTH.rstrip(),
        growth(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def bases(results: Results) -> Iterator[tuple[str, dict[str, Any], list[Figures]]]:
    """The base point of each workload that stores a basis, and its figures."""
    every = every_figure(results)
    for job in NAMES:
        base = base_point(results, job)
        if base is not None:
            yield job, base[1], [f for f in every if (f.job, f.point) == (job, base[0])]


def costs(results: Results) -> str:
    """What a user pays, one row per model."""
    rows = []
    for job, data, every in bases(results):
        multitask = {f.mode: 1e3 * f.step for f in every if f.method == "multitask"}
        eager = results.get("eager", {}).get("points", {}).get(job, {})
        runs = f"; mean of {eager['runs']} runs" if "runs" in eager else ""
        cells = [f"{NAMES[job]} (k = {data['k']}, m = {data['m']}{runs})"]
        cells.append(
            " / ".join(f"{multitask[mode]:.1f}" for mode in ("eager", "graph") if mode in multitask)
        )
        ratios = eager.get("plain_over_two_passes", {})
        alone = eager.get("plain_over_two_passes_in_one_thread", {})
        cells.append(" / ".join(f"{slowest(pairs):.2f}" for pairs in (ratios, alone) if pairs))
        auto = default(every, data["methods"])
        cells.append(f"{auto.over[10]:.2f}" if auto else "")
        best = min(ours(every, "graph").values(), key=lambda f: f.over[10], default=None)
        cells.append(
            f"{best.over[10]:.2f} ({best.method.removeprefix('attittud ')})" if best else ""
        )
        memory = (auto.memory_step, auto.memory_refresh) if auto else ()
        sizes = [f"{value * 4 * data['D'] / 1e9:.2f}" for value in memory if value is not None]
        rows.append(f"| {' | '.join([*cells, ' / '.join(sizes)])} |")
    if not rows:
        return "Nothing has been measured yet."
    head = "| model | multitask step, ms, eager / graph | plain, eager | mean, eager | mean, CUDA graphs | memory, GB |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def absolute_means(results: Results) -> str:
    """Mean eager steps over multitask steps, both as median times instead of ratios of steps in
    pairs.
    """
    words = []
    for job, data, measured in bases(results):
        auto = default(measured, data["methods"])
        multitask = [f.step for f in measured if f.method == "multitask" and f.mode == "eager"]
        if auto is not None and auto.refresh is not None and multitask:
            mean = (auto.step + auto.refresh / 10) / multitask[0]
            words.append(f"{mean:.2f} ({NAMES[job]})")
    return ", ".join(words)


def slowest(pairs: dict[str, Any]) -> float:
    """The largest ratio of all engines; 1 without a measurement."""
    return max((ratio["median"] for ratio in pairs.values()), default=1.0)


def below_one(ratio: float) -> bool:
    """Whether a reader sees a ratio below 1."""
    return round(ratio, 2) < 1


def notes(results: Results) -> str:
    """What else changes the price: n, threads, judges."""
    lines = ["* For another n, add 1/n of a refresh to a plain step."]
    absolute = absolute_means(results)
    if absolute:
        lines.append(
            f'* "Mean" comes from steps in pairs. The median times of the whole run give {absolute} instead.'
        )
    alone = [f.over[10] for f in every_figure(results) if f.method == MultitaskInOneThread.name]
    if alone:
        text = f"{min(alone):.2f} to {max(alone):.2f} times as long"
        lines += [
            "* All other methods run in torch's default threads. In the calling thread",
            f"  (`torch.autograd.set_multithreading_enabled(False)`) multitask takes {text}.",
        ]
    eager = results.get("eager", {}).get("points", {}).values()
    if any(below_one(slowest(point.get("plain_over_two_passes", {}))) for point in eager):
        lines.append(
            '* Where "plain" is below 1, its first figure also compares threads; the second does not.'
        )
    autos = [default(every, data["methods"]) for _, data, every in bases(results)]
    if any(below_one(f.over[10]) for f in autos if f is not None):
        lines.append(
            "* A mean below 1 is no gain: such steps wait for Python, whose speed varies on a shared machine."
        )
    rows = []
    point = results.get("judges", {}).get("points", {}).get("wrn22")
    if point is not None:
        shares = {mode: overhead(point, mode) for mode in WORDS}
        who = f'{point["judges"]} judges of [`eta="auto"`](which-weights.md) in every {point["judge_every"]}th step'
        added = {
            mode: f"{100 * share:.1f} %" for mode, share in shares.items() if share is not None
        }
        runs = len(overheads(point, "eager"))
        several = f"; mean of {runs} runs" if runs > 1 else ""
        rows.append((f"added by {who}, as a share of a multitask step{several}", added))
    if rows:
        lines += [
            "",
            f"| {NAMES['wrn22']} | {' | '.join(WORDS.values())} |",
            "|---" * (1 + len(WORDS)) + "|",
        ]
        lines += [
            f"| {what} | {' | '.join(figures.get(mode, '–') for mode in WORDS)} |"
            for what, figures in rows
        ]
    return "\n".join(lines)


def refreshes(results: Results) -> str:
    """What a refresh adds, by engine and peer."""
    columns = {
        "`loop`": ("attittud loop",),
        "`hooks`": ("attittud hooks", "attittud hooks, frozen BatchNorm"),
        "authors' algorithm": ("authors' algorithm",),
        "TorchJD's sketch": TORCHJD,
    }
    rows = []
    for job, data, every in bases(results):
        cells = []
        for names in columns.values():
            if same := data["methods"].get(names[0], {}).get("same_as"):
                cells.append(f"as `{same.removeprefix('attittud ')}`")
                continue
            times = []
            for mode in ("eager", "graph"):
                here = [
                    f.refresh
                    for f in every
                    if f.method in names and f.mode == mode and f.refresh is not None
                ]
                times.append(f"{1e3 * min(here):.1f}" if here else "–")
            cells.append(" / ".join(times))
        rows.append(f"| {' | '.join([NAMES[job], *cells])} |")
    if not rows:
        return ""
    head = f"| model | {' | '.join(columns)} |"
    return "\n".join([head, "|---" * (1 + len(columns)) + "|", *rows])


def growth(results: Results) -> str:
    """The measured growth of times."""
    powers = {engine: growth_with_k(results, engine).values() for engine in ("loop", "hooks")}
    texts = [
        f"{min(exponents):.2f} to {max(exponents):.2f} with `{name}`"
        for name, exponents in powers.items()
        if exponents
    ]
    if texts:
        lines = [
            f"* In CUDA graphs, the time of a refresh grows like k to the power of {', '.join(texts)}."
        ]
    else:
        lines = []
    return "\n".join(
        [
            *lines,
            "* The time of a refresh grows at most linearly with m. Its memory grows too: by the gradients of activations,",
            "  and with `hooks` by the gradients of single examples, up to 512 MiB.",
        ]
    )


def hardware(results: Results) -> list[str]:
    """The machines and revisions in short."""
    revisions_of: dict[str, set[str]] = {}
    for result in results.values():
        about = result["provenance"]
        machine = about["hardware"].get("name")
        if machine is not None:
            versions = about["versions"]
            revisions = {
                str(point.get("revision") or about["revision"])
                for point in result["points"].values()
            }
            revisions_of.setdefault(
                f"{machine}, Python {versions['python']}, torch {versions['torch']}", set()
            ).update(revisions)
    return [
        f"{machine}, revision {', '.join(sorted(revisions))}"
        for machine, revisions in revisions_of.items()
    ] or ["nothing yet"]


def cores(results: Results) -> str:
    """How much the cores of the machine differed, and which ones were used."""
    points = [point for result in results.values() for point in result["points"].values()]
    spreads = [point["slowest_core"] for point in points if "slowest_core" in point]
    if not spreads or len(spreads) < len(points) or max(spreads) < 1.1:
        return ""
    slowest = f"the slowest took up to {max(spreads):.1f} times as long"
    return (
        f"\nThe machine is shared: only its {FastCores.USED} fastest cores were used ({slowest})."
    )


def main() -> None:
    from benchmarks.plots import draw

    results = load()
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw(results, FOLDER)
    update(results)
    PAGE.write_text(page(results))
    TABLES.write_text(tables(results, sorted(path.name for path in FOLDER.glob("*.svg"))))
    print(f"wrote {PAGE}, {TABLES} and {len(list(FOLDER.glob('*.svg')))} plots")


if __name__ == "__main__":
    main()
