"""The figures of docs/appendix/reproduction.md as SVG, the same for the same results."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.statistics import FEWEST, Difference, Summary

from . import printed
from .rows import Part, Row

DOCS = Path(__file__).parents[2] / "docs" / "appendix"
PLOTS = DOCS / "reproduction"


def shown(name: str, text: str = "") -> list[str]:
    """A figure in the page, if there is one; `text` is for those who cannot see it."""
    if (PLOTS / f"{name}.svg").exists():
        return [f"![{text or name}](reproduction/{name}.svg)"]
    return []


def draw(folder: Path) -> None:
    """Draw the figures for which there are runs."""
    from .figure2 import rank_parts, samples_part
    from .table4 import everything, labels

    _beside_multitask(folder / "cat-vs-dog.svg")
    table4 = everything().rows
    curves = {
        basis: [row for label in labels(basis) if (row := table4.get(label))]
        for basis in printed.TABLE4
        if basis != "canonical"
    }
    _by_superclass(folder / "multicifar100.svg")
    _lines({50: samples_part()}, "examples m that build the basis", folder / "samples.svg")
    _lines(rank_parts(), "rank", folder / "rank.svg")
    if any(curves.values()):
        _captured({basis: rows for basis, rows in curves.items() if rows}, folder / "captured.svg")


FAINT: dict[str, Any] = {"color": "#4477aa", "alpha": 0.3, "markersize": 4, "markeredgewidth": 0}
"""A seed."""
SOLID: dict[str, Any] = {"fmt": "o", "capsize": 3, "color": "#4477aa"}
"""A mean with its interval."""
DASHED: dict[str, Any] = {"color": "#999999", "linestyle": "--", "linewidth": 1}
"""Multitask."""


def _half(interval: Summary | Difference) -> float:
    """Return half of the interval, in points."""
    return 100 * (interval.high - interval.mean) if interval.n >= FEWEST else 0.0


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
    values = [100 * value for value in row.test.values()]
    axes.plot(values, [height] * len(values), "o", **FAINT)
    ours = row.summary
    axes.errorbar(100 * ours.mean, height, xerr=_half(ours), label="ours, and its seeds", **SOLID)
    if label not in printed.TABLE2:
        return
    _, mean, half = printed.TABLE2[label]
    axes.errorbar(
        mean,
        height - 0.3,
        xerr=half,
        fmt="D",
        capsize=2,
        color="#cc6677",
        markersize=4,
        label="paper",
    )


def _beside_multitask(path: Path) -> None:
    """Draw two pictures of Table 2, with a line for each row that has runs: on the left its
    accuracies, ours and the paper's; on the right how far it is from multitask over the seeds of
    both.
    """
    from .table2 import NAMES, everything

    row_of = everything().rows
    names = {label: name for label, (name, *_) in printed.TABLE2.items()} | NAMES
    rows = {}  # from the lowest line of the picture to the highest
    for label in reversed(names):
        if label in row_of and row_of[label].runs:
            rows[label] = row_of[label]
    if "multitask" not in rows or len(rows) < 2:
        return
    figure, (left, right) = _figure(9, 2, height=0.8 + 0.28 * len(rows))
    for height, (label, row) in enumerate(rows.items()):
        _draw_accuracies(left, height, label, row)
        difference = row.minus(rows["multitask"])
        if label != "multitask" and difference is not None:
            right.errorbar(100 * difference.mean, height, xerr=_half(difference), **SOLID)
            right.annotate(
                f"{difference.n} seeds",
                (1.02, height),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=7,
            )
    left.set_yticks(range(len(rows)), [names[label] for label in rows])
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
    from .multicifar import SHORT, column, complete

    results = column()
    if not complete(results):
        return
    rows = {label: results.rows[label] for label in SHORT}
    looks = dict(zip(SHORT, zip(COLORS, MARKERS, strict=True), strict=True))
    test = {label: row.test for label, row in rows.items()}
    order = sorted(test["multitask"], key=lambda name: test["multitask"][name])
    figure, (left, right) = _figure(9, 2, height=1 + 0.34 * len(order))
    for n, (label, (color, marker)) in enumerate(looks.items()):
        shift = 0.11 * (len(looks) / 2 - 0.5 - n)  # rows that are equal must not hide each other
        accuracies = [100 * test[label][name] for name in order]
        heights = [at + shift for at in range(len(order))]
        look = {"color": color, "markersize": 3.5, "linestyle": ""}
        left.plot(accuracies, heights, marker, label=SHORT[label], **look)
    left.set_yticks(range(len(order)), [str(name).replace("_", " ") for name in order])
    left.set(xlabel="test accuracy, %", title="MultiCifar100", ylim=(-0.6, len(order) - 0.4))
    for at in range(1, len(order)):
        left.axhline(at - 0.5, color="#dddddd", linewidth=0.5, zorder=0)
    compared = [label for label in rows if label not in ("primary_only", "multitask")]
    for at, label in enumerate(reversed(compared)):
        difference = rows[label].minus(rows["multitask"])
        assert difference is not None
        color, marker = looks[label]
        pairs = [100 * (test[label][name] - test["multitask"][name]) for name in order]
        right.plot(pairs, [at - 0.1] * len(pairs), "o", **FAINT | {"color": color})
        look = SOLID | {"fmt": marker, "color": color}
        right.errorbar(100 * difference.mean, at, xerr=_half(difference), **look)
    right.set_yticks(range(len(compared)), [SHORT[label] for label in reversed(compared)])
    right.set(
        xlabel="points by superclass, mean with 95 % interval",
        title="less multitask",
        ylim=(-0.5, len(compared) - 0.5),
    )
    right.axvline(0, **DASHED)
    _save(figure, path, left.get_legend_handles_labels(), columns=4)


def _lines(parts: dict[int, tuple[Part, dict[int, str]]], what: str, path: Path) -> None:
    """Means with intervals, every seed as a faint dot, and multitask's mean in the same setting to
    compare with.
    """
    from .figure2 import with_results

    panels = {
        size: (results, rows)
        for size, (results, labels) in parts.items()
        if (rows := with_results(results, labels))
    }
    if not panels:
        return
    figure, axes = _figure(3.6 * len(panels), len(panels))
    for ax, (size, (results, rows)) in zip(axes, panels.items(), strict=True):
        if "multitask" in results.rows:
            mean = 100 * results.rows["multitask"].summary.mean
            ax.axhline(mean, label="multitask, primary_weight 1", **DASHED)
        dots = [
            (1.08 * number, 100 * value)
            for number, row in rows.items()
            for value in row.test.values()
        ]
        ax.plot(*zip(*dots, strict=True), "o", label="its seeds", **FAINT)
        summaries = [row.summary for row in rows.values()]
        half = [_half(summary) for summary in summaries]
        means = [100 * s.mean for s in summaries]
        line = SOLID | {"fmt": "o-", "label": "ATTITTUD (1, 0, 0)"}
        ax.errorbar(list(rows), means, yerr=half, **line)
        ax.set(
            xlabel=what,
            ylabel="test accuracy, 95 % interval",
            title=f"{size:,} per class",
            xscale="log",
        )
        ax.set_xticks(list(rows), [str(number) for number in rows])
        ax.minorticks_off()
    _save(figure, path, axes[0].get_legend_handles_labels(), columns=3)


def _captured(groups: dict[str, list[Row]], path: Path) -> None:
    figure, axes = _figure(8, 2)
    for ax, side in zip(axes, ("auxiliary", "primary"), strict=True):
        for basis, rows in groups.items():
            curves = [line["curves"] for row in rows for line in row.runs.values()]
            points = [
                fmean(values)
                for values in zip(*(curve[f"captured_{side}"] for curve in curves), strict=True)
            ]
            ax.plot(curves[0]["step"], [100 * point for point in points], label=basis)
        ax.set(
            xlabel="step",
            ylabel="squared norm in the basis, per cent",
            title=f"{side} gradient",
            ylim=(-3, 103),
        )
    axes[0].legend(fontsize=7)
    _save(figure, path)
