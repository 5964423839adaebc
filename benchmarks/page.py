"""Make docs/cost.md from the committed results: `python -m benchmarks.page`."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.figures import MODES, default, figures, table
from benchmarks.results import HERE, load
from benchmarks.steps import CYCLE

PAGE = HERE.parent / "docs" / "cost.md"
NAMES = {
    "wrn22": "WRN-22-4",
    "resnet18": "ResNet-18",
    "roberta128": "RoBERTa 128",
    "roberta512": "RoBERTa 512",
    "decoder_lora": "decoder with LoRA",
}
"""What the page calls the workloads."""
REFRESHES = {
    "`loop`": ("attittud loop",),
    "`hooks`": ("attittud hooks", "attittud hooks, frozen BatchNorm"),
    "authors' algorithm": ("authors' algorithm",),
    "TorchJD's sketch": ("TorchJD sketch, one by one", "TorchJD sketch, vmapped"),
}
"""The methods behind each column of the table of refreshes."""

ABOUT = """\
# What does a step cost?

`python -m benchmarks.page` makes this page from `benchmarks/results`. The appendix has [a model of the cost and more
tables](appendix/performance/tables.md). Revision 69126ad5 of this page also has the goals that we had set: 48 of 66 were met.
"""
COST = """\
## Time and memory

A guided step runs two backward passes where multitask training runs one, and projects gradients onto k directions.
Every n-th step, a *refresh*, recomputes these directions from m primary examples. The table is for n = 10: eager (without
CUDA graphs of your own) with the default [engine](engines.md), `"auto"`, and in CUDA graphs with the fastest engine that does
not freeze BatchNorm. RoBERTa is the base model, with 128 or 512 tokens.

* "Plain" is the time of a step without a refresh, divided by the time of two backward passes without a guide.
* "Mean" is the time of an average step, divided by the time of multitask steps measured next to it (the median).
* Memory is the peak beyond that of multitask training, with `"auto"`: between refreshes / in a refresh.
"""
NOTES = """\
* For another n, add 1/n of a refresh to a plain step.
* A ratio at or below 1 is no gain: such steps wait for Python, whose speed varies on a shared machine, and a guide runs its
  backward passes in the calling thread, which is mostly faster than torch's default.
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

The time of a refresh grows at most linearly with m. Its memory grows too: by the gradients of activations, and with `hooks`
by the gradients of single examples, up to 512 MiB.
"""

Results = dict[str, dict[str, Any]]


def page(results: Results) -> str:
    models = {job: results[job] for job in NAMES if job in results}
    parts = [
        ABOUT,
        hardware(results),
        COST,
        costs(models),
        NOTES + of_medians(models),
        judges(results["judges"]),
        ADVICE,
        refreshes(models),
        ENGINES,
        GROWTH,
    ]
    return "\n\n".join(map(str.strip, parts)) + "\n"


def costs(models: Results) -> str:
    """What a user pays, one row per model."""
    head = ["model", "multitask step, ms, eager / graph", "plain, eager", "mean, eager"]
    head += ["mean, CUDA graphs", "memory, GB"]
    lines = []
    for job, data in models.items():
        by_method = {(f.method, f.mode): f for f in figures(data)}
        graphs = []
        for (method, mode), f in by_method.items():
            if mode == "graph" and method.startswith("attittud") and "frozen" not in method:
                graphs.append(f)
        best = min(graphs, key=lambda f: f.mean_over)
        auto = default(data)
        times = [f"{1e3 * by_method['multitask', mode].step:.1f}" for mode in MODES]
        cells = [
            f"{NAMES[job]} (k = {data['k']}, m = {data['m']})",
            " / ".join(times),
            f"{auto.step_over / by_method['two passes', 'eager'].step_over:.2f}",
            f"{auto.mean_over:.2f}",
            f"{best.mean_over:.2f} ({best.method.removeprefix('attittud ')})",
            f"{auto.memory_step / 1e9:.2f} / {auto.memory_refresh / 1e9:.2f}",
        ]
        lines.append(cells)
    return table(head, lines)


def of_medians(models: Results) -> str:
    """Mean eager steps over multitask steps, as ratios of the median times of the whole run."""
    ratios = []
    for job, data in models.items():
        multitask = data["methods"]["multitask"]["eager"]["step"]
        auto = default(data)
        ratios.append(f"{(auto.step + auto.refresh / CYCLE) / multitask:.2f} ({NAMES[job]})")
    return f'* "Mean" as a ratio of the median times of the whole run:\n  {", ".join(ratios)}.'


def judges(data: dict[str, Any]) -> str:
    """A record of revision 69126ad5, which has the benchmark: what the judges' pass adds to a step,
    as shares of a multitask step, on average over the steps.
    """
    added = {mode: 100 * shares["added"] for mode, shares in data["shares"].items()}
    return (
        f'On WRN-22-4, {data["judges"]} judges of [`eta="auto"`](which-weights.md) in every '
        f"{data['judge_every']}th step add {added['graph']:.1f} % of a multitask\nstep in CUDA "
        f"graphs and {added['eager']:.1f} % eager."
    )


def refreshes(models: Results) -> str:
    """What a refresh adds, by engine and peer: the fastest of the methods behind each column."""
    lines = []
    for job, data in models.items():
        cells = [NAMES[job]]
        for names in REFRESHES.values():
            fastest = dict.fromkeys(MODES, math.inf)
            for f in figures(data):
                if f.method in names and f.refresh is not None:
                    fastest[f.mode] = min(fastest[f.mode], f.refresh)
            times = [f"{1e3 * seconds:.1f}".replace("inf", "–") for seconds in fastest.values()]
            cells.append(" / ".join(times))
        lines.append(cells)
    return table(["model", *REFRESHES], lines)


def hardware(results: Results) -> str:
    """The machine and revisions in short."""
    machines = set()
    for data in results.values():
        about = data["provenance"]
        versions = about["versions"]
        machines.add(
            f"{about['hardware'].get('name', 'a CPU')}, Python {versions['python']}, torch "
            f"{versions['torch']}, revision {about['revision']}"
        )
    spread = max(data["slowest_core"] for data in results.values())
    return (
        f"Measured on {'; '.join(sorted(machines))}.\nThe machine is shared: only its 4 fastest "
        f"cores were used (the slowest took up to {spread:.1f} times as long)."
    )


def main() -> None:
    PAGE.write_text(page(load()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
