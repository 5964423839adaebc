"""The figures of docs/reproduction.md as SVG, the same for the same results."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from . import paper
from .rows import Row

DOCS = Path(__file__).parent.parent / "docs"
PLOTS = DOCS / "reproduction"


def shown(name: str) -> list[str]:
    """A figure in the page, if there is one."""
    return [f"![{name}](reproduction/{name}.svg)"] if (PLOTS / f"{name}.svg").exists() else []


def draw(folder: Path) -> None:
    """Those for which there are runs."""
    from .bases import labels, table4_rows
    from .figure2 import by_rank, by_samples

    samples, ranks, table4 = by_samples(), by_rank(), table4_rows()
    curves = {
        basis: [row for label in labels(basis) if (row := table4.get(label))]
        for basis in paper.TABLE4
        if basis != "canonical"
    }
    if samples:
        _lines({"50 per class": samples}, "examples m that build the basis", folder / "samples.svg")
    if any(ranks.values()):
        _lines({f"{size:,} per class": rows for size, rows in ranks.items() if rows}, "rank", folder / "rank.svg")
    if any(curves.values()):
        _captured({basis: rows for basis, rows in curves.items() if rows}, folder / "captured.svg")


def _figure(width: float, columns: int) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attittud", "svg.fonttype": "none", "font.size": 9}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3))
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def _lines(groups: dict[str, dict[int, Row]], what: str, path: Path) -> None:
    figure, axes = _figure(3.2 * len(groups), len(groups))
    for ax, (name, rows) in zip(axes, groups.items(), strict=True):
        found = [row.summary for row in rows.values()]
        means = [100 * s.mean for s in found]
        half = [100 * (s.high - s.mean) if s.n > 1 else 0.0 for s in found]
        ax.errorbar(list(rows), means, yerr=half, fmt="o-", capsize=3, color="#4477aa")
        ax.set(xlabel=what, ylabel="test accuracy, 95 % interval", title=name)
    figure.tight_layout()
    _save(figure, path)


def _captured(groups: dict[str, list[Row]], path: Path) -> None:
    figure, axes = _figure(8, 2)
    for ax, side in zip(axes, ("auxiliary", "primary"), strict=True):
        for basis, rows in groups.items():
            curves = [line["curves"] for row in rows for line in row.runs.values()]
            points = [fmean(values) for values in zip(*(curve[f"captured_{side}"] for curve in curves), strict=True)]
            ax.plot(curves[0]["step"], points, label=basis)
        ax.set(xlabel="step", ylabel="share of the squared norm", title=f"{side} gradient", yscale="log")
    axes[-1].legend(fontsize=7)
    figure.tight_layout()
    _save(figure, path)
