"""Rows of tables from the lines of results: which runs belong together, and which settings a search
chose. All sections begin here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.statistics import PROPORTION, Difference, Summary, paired, summarise
from attittud_lab.strategies import find, names
from experiments.reproduce.results import Line, merit, read_lines

HERE = Path(__file__).parents[1]
CONFIGS = HERE / "configs"
RESULTS = HERE / "results"

Key = int | str
"""What runs are paired by: mostly their seed, in MultiCifar100 their superclass."""


@dataclass
class Row:
    """The runs of a strategy with one setting, by seed (or another key)."""

    label: str
    changes: str
    """The setting, as the name of a run folder has it."""
    runs: dict[Key, Line] = field(default_factory=dict)
    diverged: set[Key] = field(default_factory=set)
    """Seeds whose runs have no result, as their loss was not a number any more."""

    def has(self, seeds: Iterable[Key]) -> bool:
        """Whether all of them have a result."""
        return self.runs.keys() >= set(seeds)

    @property
    def settings(self) -> str:
        """What the row was run with, in short. A head that is not trained chooses the model
        whatever was drawn.
        """
        text = readable(self.changes)
        if self.label in names() and not find(self.label).trains_head:
            return re.sub("keeps [a-z]+", "lowest loss of an untrained head", text)
        return text

    @property
    def test(self) -> dict[Key, float]:
        """The figure that chose the models of the runs, on test, by seed."""
        first = next(iter(self.runs.values()))
        return self.figures(first["result"]["metric"])

    def figures(self, name: str) -> dict[Key, float]:
        """Another figure on test, such as auc/Edema, by seed."""
        return {seed: line["result"]["test"][name] for seed, line in sorted(self.runs.items())}

    @property
    def summary(self) -> Summary:
        return summarise(list(self.test.values()), PROPORTION)

    def validation(self, seeds: Sequence[Key]) -> tuple[float, float]:
        """Mean of the metric and, for ties, the negative mean loss."""
        return merit(self.runs[seed] for seed in seeds)

    def minus(self, other: Row) -> Difference:
        """The difference from another row, paired over the seeds that both have."""
        seeds = sorted(self.runs.keys() & other.runs.keys())
        first = list(map(self.test.__getitem__, seeds))
        second = list(map(other.test.__getitem__, seeds))
        return paired(first, second, PROPORTION)


@dataclass
class Part:
    """What has been run of one comparison."""

    rows: dict[str, Row]
    """By label, with the settings that the search chose."""
    tried: dict[str, list[Row]]
    """All settings that a label was tried with."""
    tuning: Sequence[Key]
    """The seeds that the search was made with."""

    def better(self, label: str, other: str) -> Row:
        """The row that is better on validation over the seeds that both have. One that diverged
        with a seed comes last: the other seeds are the lucky ones.
        """
        rows = (self.rows[label], self.rows[other])
        seeds = sorted(rows[0].runs.keys() & rows[1].runs.keys())
        return max(rows, key=lambda row: (not row.diverged, *row.validation(seeds)))


def part(experiment: str, name: str, file: str | None = None, also: Sequence[str] = ()) -> Part:
    """Read a part of an experiment. `also` are parts with the same search, which have further
    strategies or seeds; `file` names the configuration, if the part does not.
    """
    config = load(CONFIGS / f"{file or name}.yaml")
    lines = []
    for line in read_lines(RESULTS / f"{experiment}.jsonl"):
        if line["part"] in (name, *also):
            lines.append(line)
    tuning = range(config.seed, config.seed + config.compare.tuning_seeds)
    return searched_part(experiment, config, tries(lines, seed_of), tuning)


def searched_part(
    experiment: str, config: Config, tried: dict[str, list[Row]], tuning: Sequence[Key]
) -> Part:
    """Choose, for every label, the settings with the best mean on validation. Settings with which a
    run of the search diverged cannot be chosen.
    """
    rows = {}
    for label, every in tried.items():
        whole = [row for row in every if row.has(tuning)]
        if len(every) < draws(config) or not whole:
            raise SystemExit(
                f"{experiment}: the search of {label} is not finished, or all of its runs "
                f"diverged; `python -m experiments.reproduce {experiment}` runs what is missing"
            )
        rows[label] = max(whole, key=lambda row: row.validation(tuning))
    return Part(rows, tried, tuning)


def tries(lines: Iterable[Line], key: Callable[[Line], Key]) -> dict[str, list[Row]]:
    """Return all runs by label and setting. `key` says what the runs of a row differ in."""
    tried: dict[str, dict[str, Row]] = {}
    for line in lines:
        label, *middle, _, _ = line["run"].split("/")  # last, steps and seed
        changes = next((text for text in middle if "=" in text), "")
        row = tried.setdefault(label, {}).setdefault(changes, Row(label, changes))
        if line.get("diverged") is None:
            row.runs[key(line)] = line
        else:
            row.diverged.add(key(line))
    return {label: list(rows.values()) for label, rows in tried.items()}


def minutes(lines: Iterable[Line]) -> float:
    """The minutes of the device that runs took. Of runs side by side, each has its share."""
    return sum(line["seconds"] / line["made_with"].get("side_by_side", 1) for line in lines) / 60


def seed_of(line: Line) -> int:
    return int(line["run"].rpartition("/seed-")[2])


def draws(config: Config) -> int:
    """The fewest settings that a strategy is tried with; some have a fixed `primary_weight`."""
    possible = 1
    for path, values in config.compare.space.items():
        if path != "strategy.primary_weight":
            possible *= len(values)
    return min(config.compare.draws, possible)


def readable(changes: str) -> str:
    """The settings of a row's run folder, in short."""
    for section in ("training", "model", "strategy"):
        changes = changes.replace(f"-{section}.", f" {section}.")
    words = []
    for change in changes.split():
        path, _, value = change.partition("=")
        words.append(f"{_SHORT.get(path, path)} {value}")
    return ", ".join(words)


_SHORT: Mapping[str, str] = {
    "training.guided.lr": "lr",
    "strategy.primary_weight": "primary_weight",
    "model.dropout": "dropout",
    "training.finetune.lr": "fine-tuning lr",
    "model.head_init": "heads",
    "training.guided.select": "keeps",
}
