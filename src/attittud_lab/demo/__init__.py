"""The demo: one configuration, several ways to use the auxiliary data, three qualities of its
labels, and one table.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median_low
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attittud_lab.compare.candidates import PRIMARY_ONLY, Candidate, Tuned, Variant
from attittud_lab.compare.content import content, costs
from attittud_lab.compare.table import flat
from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.errors import counted, percent
from attittud_lab.files import without_nan
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, Job
from attittud_lab.placing.processes import in_processes
from attittud_lab.runs.result import RunResult
from attittud_lab.statistics import FEWEST, mark, paired
from attittud_lab.strategies import find

CONFIG = Path(__file__).with_name("digits.yaml")
QUALITIES = {
    "labels right": "null",
    "50 % random": "{kind: random}",
    "50 % shifted to the next class": "{kind: shifted}",
}
"""Qualities by their name in the table, with the `label_noise` of the auxiliary source."""
_SIMPLE = ["strategy=portfolio", "portfolio.features=[histogram]"]
SIMPLE = "simple_learner"
PORTFOLIO = "portfolio"
ROWS: dict[str, tuple[str, list[str]]] = {
    PRIMARY_ONLY: ("a network that ignores the auxiliary data", []),
    SIMPLE: (
        (
            "what you would use instead: gradient histograms and logistic regression on the "
            "primary labels alone"
        ),
        [*_SIMPLE, "portfolio.uses=[alone]"],
    ),
    "multitask": ("the plain sum of both losses: Eta (1, 1, 1)", []),
    "drop_harmful": ("Eta (1, 1, 0)", []),
    "flip": ("Eta (1, 1, -1)", []),
    "auto": ("validation examples decide how much weight each part gets", []),
    "own_head": (
        "a control: multitask, but the auxiliary task has its own output layer",
        ["strategy=multitask", "data.auxiliary.others.share_head=false"],
    ),
    PORTFOLIO: (
        "what `attittud train` does: the simple learner, alone and stacked, on folds",
        _SIMPLE,
    ),
}
"""The rows: what each does, and its settings where they differ from the strategy of the same
name.
"""
ALONE = (PRIMARY_ONLY, SIMPLE)
"""The rows that ignore the auxiliary data."""
ETA = (
    "Eta (a, b, c) below are the weights of the neutral, the helpful and the harmful part of the "
    "auxiliary gradient."
)
WIDE = 112
"""The width of a terminal in which every row of the table fits into one line."""
STYLES = {"▲": "green", "▼": "red"}
MARKS = "▲ better, ▼ worse, = not significant (p corrected by Holm for the rows of a column)"
OWN = """The same for your own data:
  attittud init image --primary pictures/ --auxiliary other_pictures/   # or text, table: looks at the data, writes attittud.yaml
  attittud train attittud.yaml                                          # strategy portfolio: tries several, keeps the best
  attittud predict runs/attittud/portfolio/seed-0 new_pictures/         # labels and probabilities"""
Cell = tuple[str, str, int]
"""A run: its row, the quality of its labels, and its seed."""


def config(cell: Cell, steps: int) -> Config:
    """Return the configuration of a run with this many guided steps."""
    row, quality, seed = cell
    settings = ROWS[row][1] or [f"strategy={row}"]
    noise = f"data.auxiliary.others.label_noise={QUALITIES[quality]}"
    return load(CONFIG, [f"seed={seed}", f"training.guided.steps={steps}", noise, *settings])


def measure(here: Here, cell: Cell, steps: int) -> tuple[RunResult, float]:
    """Train in a separate process; also returns the processor time that it took."""
    from attittud_lab.portfolio.run import run as run_portfolio
    from attittud_lab.training.train import run

    began = time.process_time()
    settings = config(cell, steps)
    if find(settings.strategy.name).trains_others:
        # Without the progress of its trials, and without what only its own report shows.
        result = run_portfolio(settings, here.folder, fresh=True, explain=False)
    else:
        result = run(settings, run_dir=here.folder, progress=here.progress, fresh=True)
    return result, time.process_time() - began


def job_of(cell: Cell, steps: int, folder: Path) -> Job:
    """Return the job of a run, which returns its result and its processor time."""
    row, quality, seed = cell
    path = folder / "runs" / quality.replace(" ", "-") / row / f"seed-{seed}"
    return Job(f"{row}, {quality}, seed {seed}", measure, (cell, steps), path)


def run_all(
    seeds: int, steps: int, workers: int, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Run the demo and return a comparison with a table for every quality.

    Rows that ignore the auxiliary data are trained in the first quality alone.
    """
    first, *others = QUALITIES
    jobs = []
    # Seed by seed, so that the time of the finished runs says how long the others will take.
    for seed, quality, row in product(range(seeds), QUALITIES, ROWS):
        if row not in ALONE or quality == first:
            jobs.append(job_of((row, quality, seed), steps, folder))
    began = time.perf_counter()
    processor = 0.0
    results: dict[Cell, RunResult] = {}
    progress.comparison(len(jobs))
    with in_processes(workers) as place:
        for job, (result, seconds) in place.run(jobs, progress):
            results[job.arguments[0]] = result
            processor += seconds
    # The rows in ALONE ignore the auxiliary data, so their runs of one quality stand for all.
    for row, quality, seed in product(ALONE, others, range(seeds)):
        if row in ROWS:
            results[row, quality, seed] = results[row, first, seed]
    # Each quality gives a comparison with one table. The page is the first of them, with the tables
    # of all.
    page: dict[str, Any] = {}
    tables = []
    for quality in QUALITIES:
        comparison = _comparison(quality, seeds, folder, results)
        (table,) = comparison["tables"]
        about = f"auxiliary labels: {quality}"
        if quality == first:
            page = comparison
        else:  # the decision of the page is about the first quality alone
            about += f". {table['decision']['text'].removesuffix('.')}"
        tables.append(table | {"name": quality, "about": about})
    whole = {
        **page,
        "title": "Where auxiliary data help, do nothing, and hurt",
        "tables": tables,
        "decision": tables[0]["decision"] | {"table": first},
        "next": {
            "command": OWN.splitlines()[1].partition("#")[0].strip(),
            "why": "is the first step for your own data",
        },
        "took": {
            "seconds": time.perf_counter() - began,
            "processor_seconds": processor,
            "workers": workers,
        },
    }
    return without_nan(whole)  # type: ignore[no-any-return]  # a dict stays a dict


def _comparison(
    quality: str, seeds: int, folder: Path, results: dict[Cell, RunResult]
) -> dict[str, Any]:
    """Return the comparison of all rows in one quality, as `attittud compare` writes it.

    The costs of a row are seconds for each of the guided steps that primary_only makes.
    """
    usual_steps = results[PRIMARY_ONLY, quality, 0].steps
    settings = load(CONFIG, [f"compare.seeds={seeds}"])
    runs = {}
    rows = []
    for row in ROWS:
        runs[row] = {seed: results[row, quality, seed] for seed in range(seeds)}
        candidate = Candidate(row, settings.strategy, row != PRIMARY_ONLY)
        trained = list(runs[row].values())
        if trained[0].steps:
            per_step, finetuning = costs(trained)
            # A row whose result needs several trainings makes more steps, and costs more.
            per_step *= trained[0].steps / usual_steps
        else:  # a simple learner makes no steps
            per_step = median_low(run.seconds for run in trained) / usual_steps
            finetuning = 0.0
        rows.append(Tuned(candidate, Variant(), {Variant(): None}, per_step, finetuning))
    comparison = content(settings, folder, rows, runs)
    for part in (comparison, *comparison["tables"]):
        decision = part["decision"]
        decision["text"] = own_options(decision["text"])
    return comparison


def own_options(text: str) -> str:
    """Replace the setting of `attittud compare` in a decision by the option of the demo."""
    text = re.sub(r"compare\.seeds=(\d+)", r"--seeds \1", text)
    return text.replace("raise compare.seeds", "raise --seeds")


# ---------------------------------------------------------------------------------------- the table


def grid(result: Mapping[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Return the cells of each row, by its label: one triple of texts for each table.

    A triple has the accuracy, the mark, and the difference to primary_only; the last two are empty
    for primary_only itself.
    """
    cells: dict[str, list[tuple[str, str, str]]] = {}
    for table in result["tables"]:
        for row in table["rows"]:
            difference = row["to_primary_only"]
            cell = (_text(row["test"]), "", "")
            if difference is not None:
                sign = mark(difference["mean"], difference["p"])
                cell = (_text(row["test"]), sign, _text(difference, "+"))
            cells.setdefault(row["label"], []).append(cell)
    return cells


def _text(interval: Mapping[str, Any], sign: str = "") -> str:
    """Return a mean in per cent, with half the width of its interval if there is one."""
    mean = interval["mean"]
    low = interval["low"]
    if low is None or flat(interval):
        return percent(mean, sign)
    return f"{percent(mean, sign)} ± {percent(max(interval['high'] - mean, mean - low))}"


def rich_table(result: Mapping[str, Any]) -> Table:
    """Return the table for a terminal; in a narrow one the difference comes below the accuracy."""
    accuracy = "Test accuracy (%) with 10 correct labels per class"
    title = f"{accuracy}; after the mark, points above or below {PRIMARY_ONLY}"
    count = len(result["seeds"])
    over = f"over {counted(count, 'seed')}"
    caption = f"mean {over}; ? too few seeds to tell"
    if count >= FEWEST:
        caption = f"mean ± 95 % interval {over}; {MARKS}"
    drawn = Table("auxiliary labels:", title=title, caption=caption, box=box.SIMPLE_HEAD)
    for table in result["tables"]:
        drawn.add_column(table["name"])
    for label, cells in grid(result).items():
        texts = []
        for mean, sign, difference in cells:
            texts.append(Text(f"{mean}  {sign} {difference}".rstrip(), STYLES.get(sign, "")))
        drawn.add_row(label, *texts)
    return drawn


def conclusions(result: Mapping[str, Any]) -> list[str]:
    """Say what the table shows, in lines that follow from its marks alone.

    They count the marks of each column, compare the portfolio with the simple learner, and name the
    rows without a loss. With too few seeds for an interval, one line says so instead.
    """
    cells = grid(result)
    del cells[PRIMARY_ONLY]
    unharmed = []
    marks: list[list[str]] = []
    for label, row in cells.items():
        signs = [sign for _, sign, _ in row]
        if "?" in signs:
            few = "There are too few seeds for an interval"
            return [f"{few}: use more (--seeds) before you conclude anything."]
        if "▼" not in signs:
            unharmed.append(label)
        marks.append(signs)
    lines = []
    for table, signs_of_column in zip(result["tables"], zip(*marks, strict=True), strict=True):
        gain, lose, same = map(signs_of_column.count, "▲▼=")
        lines.append(
            f"{table['name']}: of {len(marks)} rows, gains {gain}, losses {lose}, no significant "
            f"difference {same}."
        )
    if SIMPLE in cells and PORTFOLIO in cells:
        lines.append(beside_simple(result))
    names = ", ".join(unharmed) or "none"
    lose_nowhere = "Rows that lose in no column (which does not prove that they never lose)"
    return [*lines, f"{lose_nowhere}: {names}."]


def beside_simple(result: Mapping[str, Any]) -> str:
    """Say how much better the portfolio is than what one would use instead, seed by seed."""
    differences = []
    for table in result["tables"]:
        tests = {}
        for row in table["rows"]:
            tests[row["label"]] = [value["test"] for value in row["values"].values()]
        difference = paired(tests[PORTFOLIO], tests[SIMPLE])
        differences.append(f"{table['name']} {_text(asdict(difference), '+')}")
    return f"{PORTFOLIO} minus {SIMPLE}, in points: {'; '.join(differences)}."
