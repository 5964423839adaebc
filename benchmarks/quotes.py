"""Sentences elsewhere in the docs that quote measured figures; `python -m benchmarks.page` keeps
their numbers up to date.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.figures import Results, base_point, default, figures
from benchmarks.judges import overhead
from benchmarks.results import HERE

ROOT = HERE.parent


@dataclass(frozen=True)
class Quote:
    """A sentence of a file, with {} for each number and with the line breaks of the file."""

    file: str
    sentence: str
    numbers: list[str]

    def put(self, text: str) -> str:
        """The text with the measured numbers in the sentence."""
        words = [
            re.escape(word).replace(r"\{\}", r"(\d+(?:\.\d+)?)") for word in self.sentence.split()
        ]
        places = re.findall(r"\s+".join(words), text)
        if len(places) != 1:
            raise ValueError(f"{self.file} should have this sentence once: {self.sentence}")
        match = re.search(r"\s+".join(words), text)
        assert match is not None and len(match.groups()) == len(self.numbers)
        for index, number in reversed(list(enumerate(self.numbers, start=1))):
            text = text[: match.start(index)] + number + text[match.end(index) :]
        return text


def quotes(results: Results) -> list[Quote]:
    """All sentences whose figures have been measured."""
    quoted = []
    bases = [(job, base) for job in ("roberta512", "wrn22") if (base := base_point(results, job))]
    numbers = [
        f"{auto.over[10]:.2f}"
        for job, base in bases
        if (auto := default(list(figures(job, *base)), base[1]["methods"]))
    ]
    if len(numbers) == 2:
        sentence = "takes {} times as long as a multitask step for RoBERTa-base with 512 tokens (rank 10), and {} times for a"
        quoted.append(Quote("README.md", sentence, numbers))
    base = base_point(results, "wrn22")
    if base:
        steps = {
            f.mode: f"{1e3 * f.step:.0f}"
            for f in figures("wrn22", *base)
            if f.method == "multitask"
        }
    else:
        steps = {}
    if {"graph", "eager"} <= steps.keys():
        sentence = "a multitask step of a WideResNet-22-4 takes {} ms instead of {} ([cost]"
        quoted.append(Quote("docs/training.md", sentence, [steps["graph"], steps["eager"]]))
    point = results.get("judges", {}).get("points", {}).get("wrn22")
    if point is not None:
        shares = [
            share for mode in ("graph", "eager") if (share := overhead(point, mode)) is not None
        ]
        if len(shares) == 2:
            sentence = "16 judges add {} % of the multitask step in CUDA graphs and {} % without"
            quoted.append(
                Quote("docs/appendix/auto.md", sentence, [f"{100 * share:.1f}" for share in shares])
            )
    return quoted


def update(results: Results) -> None:
    """Write the measured numbers into the files."""
    for quote in quotes(results):
        path = ROOT / quote.file
        path.write_text(quote.put(path.read_text()))
