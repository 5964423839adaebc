"""The figures of docs/appendix/reproduction.md as SVG, the same for the same results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from attittud_lab.statistics import FEWEST, Summary
from experiments.reproduce.results import Line

from . import printed
from .rows import Row

if TYPE_CHECKING:
    from .figure2 import Panel

DOCS = Path(__file__).parents[2] / "docs" / "appendix"
PLOTS = DOCS / "reproduction"


def shown(name: str, text: str = "") -> str:
    """A figure in the page; `text` is for those who cannot see it."""
    return f"![{text or name}](reproduction/{name}.svg)"


def draw(folder: Path) -> None:
    """Draw all figures."""
    from .figure2 import rank_panels, samples_panel

    _beside_multitask(folder / "cat-vs-dog.svg")
    _by_superclass(folder / "multicifar100.svg")
    _lines({50: samples_panel()}, "examples m that build the basis", folder / "samples.svg")
    _lines(rank_panels(), "rank", folder / "rank.svg")
    _captured(folder / "captured.svg")


FAINT: dict[str, Any] = {"color": "#4477aa", "alpha": 0.3, "markersize": 4, "markeredgewidth": 0}
"""A seed."""
SOLID: dict[str, Any] = {"fmt": "o", "capsize": 3, "color": "#4477aa"}
"""A mean with its interval."""
DASHED: dict[str, Any] = {"color": "#999999", "linestyle": "--", "linewidth": 1}
"""Multitask."""


def _half(interval: Summary) -> float:
    """Return half of the interval, in points."""
    if interval.n < FEWEST:
        return 0.0
    return 100 * (interval.high - interval.mean)


def _percent(values: Iterable[float]) -> list[float]:
    return [100 * value for value in values]


def _figure(width: float, columns: int, height: float = 3) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attittud", "svg.fonttype": "none", "font.size": 9}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _save(figure: Any, path: Path, legend: Any = None, columns: int = 1) -> None:
    """Write a file. `legend` has handles and labels for below the picture, in so many columns."""
    figure.tight_layout()
    if legend is not None:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
        figure.legend(*legend, ncols=columns, fontsize=7, **place)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def _draw_accuracies(axes: Any, height: float, label: str, row: Row) -> None:
    """Draw a row of Table 2: its seeds, their mean with its interval and, below, the paper's."""
    values = _percent(row.test.values())
    axes.plot(values, [height] * len(values), "o", **FAINT)
    ours = row.summary
    axes.errorbar(100 * ours.mean, height, xerr=_half(ours), label="ours, and its seeds", **SOLID)
    if label in printed.TABLE2:
        _, mean, half = printed.TABLE2[label]
        look = {"fmt": "D", "capsize": 2, "color": "#cc6677", "markersize": 4, "label": "paper"}
        axes.errorbar(mean, height - 0.3, xerr=half, **look)


def _beside_multitask(path: Path) -> None:
    """Draw two pictures of Table 2, with a line for each row: on the left its accuracies, ours and
    the paper's; on the right how far it is from multitask over the seeds of both.
    """
    from .table2 import NAMES, everything

    rows = everything().rows
    names = printed.names(printed.TABLE2) | NAMES
    labels = [*reversed(names)]  # from the lowest line of the picture to the highest
    figure, (left, right) = _figure(9, 2, height=0.8 + 0.28 * len(labels))
    for height, label in enumerate(labels):
        _draw_accuracies(left, height, label, rows[label])
        if label == "multitask":
            continue
        difference = rows[label].minus(rows["multitask"])
        right.errorbar(100 * difference.mean, height, xerr=_half(difference), **SOLID)
        place = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 7}
        right.annotate(f"{difference.n} seeds", (1.02, height), **place)
    left.set_yticks(range(len(labels)), list(map(names.get, labels)))
    left.set(xlabel="test accuracy, 95 % interval", title="Cat-vs-Dog")
    right.set(
        xlabel="points, 95 % interval",
        title="less multitask, over common seeds",
        yticks=[],
        ylim=left.get_ylim(),
    )
    right.axvline(0, **DASHED)
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    _save(figure, path, (handles.values(), handles.keys()), columns=2)


COLORS = ("#bbbbbb", "#ccbb44", "#66ccee", "#4477aa", "#cc6677", "#228833", "#aa3377")
MARKERS = "xv^osDP"


def _by_superclass(path: Path) -> None:
    """Draw every row of MultiCifar100 on every superclass, and how far those with auxiliary data
    are from multitask.
    """
    from .multicifar import SHORT, column

    rows = column().rows
    looks = dict(zip(SHORT, zip(COLORS, MARKERS, strict=True), strict=True))
    multitask = rows["multitask"].test
    order = sorted(multitask, key=lambda name: multitask[name])
    figure, (left, right) = _figure(9, 2, height=1 + 0.34 * len(order))
    for number, (label, (color, marker)) in enumerate(looks.items()):
        # Rows that are equal must not hide each other.
        shift = 0.11 * (len(looks) / 2 - 0.5 - number)
        accuracies = _percent(rows[label].test[name] for name in order)
        heights = np.arange(len(order)) + shift
        look = {"color": color, "markersize": 3.5, "linestyle": ""}
        left.plot(accuracies, heights, marker, label=SHORT[label], **look)
    left.set_yticks(range(len(order)), [str(name).replace("_", " ") for name in order])
    left.set(xlabel="test accuracy, %", title="MultiCifar100", ylim=(-0.6, len(order) - 0.4))
    for at in range(1, len(order)):
        left.axhline(at - 0.5, color="#dddddd", linewidth=0.5, zorder=0)
    compared = [label for label in SHORT if label not in ("primary_only", "multitask")]
    compared.reverse()
    for at, label in enumerate(compared):
        difference = rows[label].minus(rows["multitask"])
        color, marker = looks[label]
        points = _percent(rows[label].test[name] - multitask[name] for name in order)
        right.plot(points, [at - 0.1] * len(points), "o", **FAINT | {"color": color})
        look = SOLID | {"fmt": marker, "color": color}
        right.errorbar(100 * difference.mean, at, xerr=_half(difference), **look)
    right.set_yticks(range(len(compared)), list(map(SHORT.get, compared)))
    right.set(
        xlabel="points by superclass, mean with 95 % interval",
        title="less multitask",
        ylim=(-0.5, len(compared) - 0.5),
    )
    right.axvline(0, **DASHED)
    _save(figure, path, left.get_legend_handles_labels(), columns=4)


def _lines(panels: dict[int, Panel], xlabel: str, path: Path) -> None:
    """Draw a panel for each number of examples per class: means with intervals, every seed as a
    faint dot, and multitask's mean in the same setting to compare with.
    """
    figure, axes = _figure(3.6 * len(panels), len(panels))
    for ax, (size, panel) in zip(axes, panels.items(), strict=True):
        mean = 100 * panel.multitask.summary.mean
        ax.axhline(mean, label="multitask, primary_weight 1", **DASHED)
        x: list[float] = []
        y: list[float] = []
        for number, row in panel.rows.items():
            values = _percent(row.test.values())
            x += [1.08 * number] * len(values)
            y += values
        ax.plot(x, y, "o", label="its seeds", **FAINT)
        summaries = [row.summary for row in panel.rows.values()]
        means = _percent(summary.mean for summary in summaries)
        line = SOLID | {"fmt": "o-", "label": "ATTITTUD (1, 0, 0)"}
        ax.errorbar(list(panel.rows), means, yerr=list(map(_half, summaries)), **line)
        title = f"{size:,} per class"
        ax.set(xlabel=xlabel, ylabel="test accuracy, 95 % interval", title=title, xscale="log")
        ax.set_xticks(list(panel.rows), list(map(str, panel.rows)))
        ax.minorticks_off()
    _save(figure, path, axes[0].get_legend_handles_labels(), columns=3)


def _captured(path: Path) -> None:
    """Draw the share of both gradients' squared norm inside each basis, over the steps."""
    from .table4 import BASES_WITH_SHARES, everything, labels

    rows = everything().rows
    figure, axes = _figure(8, 2)
    for ax, side in zip(axes, ("auxiliary", "primary"), strict=True):
        for basis in BASES_WITH_SHARES:
            lines: list[Line] = []
            for label in labels(basis):
                lines += rows[label].runs.values()
            curves = [line["curves"] for line in lines]
            points = zip(*(curve[f"captured_{side}"] for curve in curves), strict=True)
            ax.plot(curves[0]["step"], _percent(map(fmean, points)), label=basis)
        ax.set(
            xlabel="step",
            ylabel="squared norm in the basis, per cent",
            title=f"{side} gradient",
            ylim=(-3, 103),
        )
    axes[0].legend(fontsize=7)
    _save(figure, path)
