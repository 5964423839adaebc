"""From accuracies to what a reader sees: means, intervals over seeds, paired differences and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from attittud_lab import statistics
from attittud_lab.demo.rows import BASELINE

WIDE = 112  # columns of a terminal that the table fills without two lines to a row
STYLES = {"▲": "green", "▼": "red", "=": "", "?": ""}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and half of its 95 % t-interval (NaN for a single seed)."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        found = statistics.summarise(values)
        return cls(found.mean, found.high - found.mean)

    def text(self, sign: str = "") -> str:
        return f"{self.mean:{sign}.1f}" + ("" if math.isnan(self.half) else f" ± {self.half:.1f}")


@dataclass(frozen=True)
class Cell:
    """One row in one quality."""

    accuracy: Estimate
    difference: Estimate
    """Seed by seed, to the baseline."""

    @property
    def verdict(self) -> str:
        """▲ better than the baseline, ▼ worse, = no difference seen, ? one seed cannot tell."""
        if math.isnan(self.difference.half):
            return "?"
        if abs(self.difference.mean) <= self.difference.half:
            return "="
        return "▲" if self.difference.mean > 0 else "▼"


Cells = Mapping[str, Mapping[str, Cell]]


def summarise(results: Mapping[str, Any]) -> Cells:
    """Cells by row and quality."""
    base = results["accuracy"][BASELINE]
    return {
        row: {
            quality: Cell(
                Estimate.of(values),
                Estimate.of([value - reference for value, reference in zip(values, base[quality], strict=True)]),
            )
            for quality, values in found.items()
        }
        for row, found in results["accuracy"].items()
    }


def rich_table(results: Mapping[str, Any], *, narrow: bool = False) -> Table:
    """For a terminal."""
    n = len(results["settings"]["seeds"])
    title = f"Test accuracy (%) with 10 clean labels per class; behind the sign the difference to {BASELINE}"
    table = Table(title=title, caption=f"mean ± 95 % interval over {n} seeds", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("auxiliary labels:", no_wrap=True)
    for text in results["qualities"].values():
        table.add_column(text)
    for row, found in summarise(results).items():
        texts = []
        for cell in found.values():
            text = cell.accuracy.text()
            if row != BASELINE:
                text = f"{text:<11}{chr(10) if narrow else ' '}{cell.verdict} {cell.difference.text('+')}"
            style = STYLES[cell.verdict]
            texts.append(f"[{style}]{text}[/{style}]" if style and row != BASELINE else text)
        table.add_row(row, *texts)
    return table


def markdown(results: Mapping[str, Any]) -> str:
    """For the README."""
    lines = [
        f"| | what it does | {' | '.join(results['qualities'].values())} |",
        "|---|---|" + "---|" * len(results["qualities"]),
    ]
    for row, found in summarise(results).items():
        texts = [
            cell.accuracy.text() + ("" if row == BASELINE else f" ({cell.verdict} {cell.difference.text('+')})")
            for cell in found.values()
        ]
        lines.append(f"| `{row}` | {results['rows'][row]} | {' | '.join(texts)} |")
    return "\n".join(lines)


def conclusions(results: Mapping[str, Any]) -> list[str]:
    """What the table says, in words that follow from its signs alone."""
    found = {row: by_quality for row, by_quality in summarise(results).items() if row != BASELINE}
    if any(cell.verdict == "?" for by_quality in found.values() for cell in by_quality.values()):
        return ["One seed has no interval: take more (--seeds) before you conclude anything."]
    lines = []
    for quality, text in results["qualities"].items():
        counts = [sum(cells[quality].verdict == verdict for cells in found.values()) for verdict in "▲=▼"]
        lines.append(
            f"{text}: {counts[0]} of {len(found)} rows gain, {counts[1]} show no difference, {counts[2]} lose."
        )
    unharmed = [row for row, cells in found.items() if all(cell.verdict != "▼" for cell in cells.values())]
    lines.append(f"Rows that no column shows to lose: {', '.join(unharmed) or 'none'}.")
    return lines
