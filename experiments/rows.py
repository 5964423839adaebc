"""Rows of tables from the lines of results: which runs belong together, and which settings a search chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud.recipes.config import Config
from attittud.recipes.loader import load
from attittud.recipes.reproduce.results import read_lines
from attittud.recipes.statistics import Difference, Summary, paired, summarise

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass
class Row:
    """The runs of a strategy with one setting, by seed."""

    label: str
    changes: str
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The figure that chose the models of its runs, and that a table shows."""
        return str(next(iter(self.runs.values()))["result"]["metric"])

    @property
    def test(self) -> dict[int, float]:
        return self.figures(self.metric)

    def figures(self, name: str) -> dict[int, float]:
        """Another figure on test, such as auc/Edema, by seed."""
        return {seed: line["result"]["test"][name] for seed, line in sorted(self.runs.items())}

    @property
    def summary(self) -> Summary:
        return summarise(list(self.test.values()))

    def validation(self, seeds: Sequence[int]) -> tuple[float, float]:
        """Mean of the metric and, for ties, the negative mean loss."""
        found = [self.runs[seed]["result"]["validation"] for seed in seeds]
        return fmean(line[self.metric] for line in found), -fmean(line["loss"] for line in found)

    def minus(self, other: Row) -> Difference | None:
        """Paired over the seeds that both have; None where there are fewer than two."""
        seeds = [seed for seed in self.test if seed in other.test]
        return paired([self.test[s] for s in seeds], [other.test[s] for s in seeds]) if len(seeds) > 1 else None


@dataclass
class Part:
    """What has been run of one comparison."""

    config: Config
    rows: dict[str, Row]
    """By label, with the settings that the search chose."""
    tried: dict[str, list[Row]]
    """All settings that a label was tried with."""
    unfinished: list[str]
    """Labels whose search is not complete, so that nothing is chosen yet."""


def part(
    experiment: str, name: str, file: str | None = None, also: Sequence[str] = (), overrides: Sequence[str] = ()
) -> Part:
    """Read a part of an experiment; one that was not run has no rows.

    `also` are parts with the same search, which have further strategies or seeds; `overrides` fill in what the file leaves open.
    """
    config = load(HERE / f"{file or name}.yaml", list(overrides))
    lines = [line for line in read_lines(RESULTS / f"{experiment}.jsonl") if line["part"] in (name, *also)]
    tried: dict[str, dict[str, Row]] = {}
    for line in lines:
        label, *middle, _, _ = line["run"].split("/")
        changes = next((text for text in middle if "=" in text), "")
        row = tried.setdefault(label, {}).setdefault(changes, Row(label, changes))
        row.runs[line["result"]["seed"]] = line
    tuning = [config.seed + i for i in range(config.compare.tuning_seeds)]
    rows, unfinished = {}, []
    for label, found in tried.items():
        whole = [row for row in found.values() if all(seed in row.runs for seed in tuning)]
        if len(whole) < draws(config):
            unfinished.append(label)
        else:
            rows[label] = max(whole, key=lambda row: row.validation(tuning))
    return Part(config, rows, {label: list(found.values()) for label, found in tried.items()}, unfinished)


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
