"""Rows of tables from the lines of results: which runs belong together, and which settings a search
chose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.statistics import FEWEST, PROPORTION, Difference, Summary, paired, summarise
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
    runs: dict[Key, dict[str, Any]] = field(default_factory=dict)
    diverged: set[Key] = field(default_factory=set)
    """Seeds whose runs have no result, as their loss was not a number any more."""

    def over(self, seeds: Iterable[Key]) -> bool:
        """Whether all of them have been run, whatever came of it."""
        return all(seed in self.runs or seed in self.diverged for seed in seeds)

    def whole(self, seeds: Iterable[Key]) -> bool:
        """Whether all of them have a result, without which a row cannot be chosen."""
        return all(seed in self.runs for seed in seeds)

    def merit(self, seeds: Sequence[Key]) -> tuple[bool, float, float]:
        """What rows are chosen by; one that diverged with some seeds is known by the others, the
        lucky ones.
        """
        return not self.diverged, *self.validation(seeds)

    @property
    def settings(self) -> str:
        """What the row was run with, in short; a head that is not trained chooses the model
        whatever was drawn.
        """
        text = readable(self.changes)
        trained = self.label not in names() or find(self.label).trains_head
        return text if trained else re.sub("keeps [a-z]+", "lowest loss of an untrained head", text)

    @property
    def metric(self) -> str:
        """The figure that chose the models of its runs, and that a table shows."""
        return str(next(iter(self.runs.values()))["result"]["metric"])

    @property
    def test(self) -> dict[Key, float]:
        return self.figures(self.metric)

    def figures(self, name: str) -> dict[Key, float]:
        """Another figure on test, such as auc/Edema, by seed."""
        return {seed: line["result"]["test"][name] for seed, line in sorted(self.runs.items())}

    @property
    def summary(self) -> Summary:
        return summarise(list(self.test.values()), PROPORTION)

    def validation(self, seeds: Sequence[Key]) -> tuple[float, float]:
        """Mean of the metric and, for ties, the negative mean loss."""
        return merit(self.runs[seed] for seed in seeds)

    def minus(self, other: Row) -> Difference | None:
        """Paired over the seeds that both have; None where there are too few for an interval."""
        seeds = sorted(seed for seed in self.runs if seed in other.runs)
        if len(seeds) < FEWEST:
            return None
        return paired([self.test[s] for s in seeds], [other.test[s] for s in seeds], PROPORTION)


@dataclass
class Part:
    """What has been run of one comparison."""

    config: Config
    rows: dict[str, Row]
    """By label, with the settings that the search chose."""
    tried: dict[str, list[Row]]
    """All settings that a label was tried with."""
    tuning: Sequence[Key]
    """The seeds that the search was made with."""

    def searched(self, label: str) -> bool:
        """Whether all settings of a label have been tried."""
        return sum(row.over(self.tuning) for row in self.tried.get(label, ())) >= draws(self.config)

    def choose(self) -> None:
        """Fill in the rows: of every label whose search is over the settings with the best mean on
        validation.
        """
        for label, every in self.tried.items():
            whole = [row for row in every if row.whole(self.tuning)]
            if whole and self.searched(label):
                self.rows[label] = max(whole, key=lambda row: row.validation(self.tuning))

    @property
    def claimed(self) -> dict[str, Row]:
        """What claims are judged by: rows with results and, without a run, those that diverged with
        every setting.
        """
        lost = [label for label in self.tried if label not in self.rows and self.searched(label)]
        return self.rows | {label: Row(label, "") for label in lost}

    def best(self, labels: Sequence[str]) -> Row | None:
        """The one that is better on validation, over the seeds that all have; none until all are
        there, or have diverged.
        """
        rows = [self.rows[label] for label in labels if label in self.rows]
        seeds = sorted(set.intersection(*(set(row.runs) for row in rows))) if rows else []
        over = all(self.searched(label) for label in labels)
        return max(rows, key=lambda row: row.merit(seeds)) if seeds and over else None


def part(experiment: str, name: str, file: str | None = None, also: Sequence[str] = ()) -> Part:
    """Read a part of an experiment; one that was not run has no rows.

    `also` are parts with the same search, which have further strategies or seeds.
    """
    config = load(CONFIGS / f"{file or name}.yaml")
    lines = [
        line
        for line in read_lines(RESULTS / f"{experiment}.jsonl")
        if line["part"] in (name, *also)
    ]
    tuning = [config.seed + i for i in range(config.compare.tuning_seeds)]
    results = Part(config, {}, tries(lines, seed_of), tuning)
    results.choose()
    return results


def tries(lines: Iterable[Line], key: Callable[[Line], Key]) -> dict[str, list[Row]]:
    """Return all runs by label and setting; `key` says what the runs of a row differ in."""
    tried: dict[str, dict[str, Row]] = {}
    for line in lines:
        label, *middle, _, _ = line["run"].split("/")
        changes = next((text for text in middle if "=" in text), "")
        row = tried.setdefault(label, {}).setdefault(changes, Row(label, changes))
        if line.get("diverged") is None:
            row.runs[key(line)] = line
        else:
            row.diverged.add(key(line))
    return {label: list(some.values()) for label, some in tried.items()}


def minutes(lines: Iterable[Line]) -> float:
    """The minutes of the device that runs took. Of runs side by side, each has its share."""
    return sum(line["seconds"] / line["made_with"].get("side_by_side", 1) for line in lines) / 60


def seed_of(line: Line) -> int:
    return int(line["run"].rpartition("/seed-")[2])


def draws(config: Config) -> int:
    """Settings that every strategy is tried with."""
    possible = 1
    for path, values in config.compare.space.items():
        possible *= 1 if path == "strategy.primary_weight" else len(values)
    return min(config.compare.draws, possible)


def readable(changes: str) -> str:
    """The settings of a row's run folder, in short."""
    words = []
    for text in (
        changes.replace("-training.", " training.")
        .replace("-model.", " model.")
        .replace("-strategy.", " strategy.")
        .split()
    ):
        path, _, value = text.partition("=")
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
