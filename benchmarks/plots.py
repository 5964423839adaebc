"""Plots of the page: what a mean step costs, and how a refresh grows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.figures import Figures, Results, every_figure, in_a_graph


def draw(results: Results, folder: Path) -> None:
    """SVG files that are the same for the same results."""
    every = every_figure(results)
    points = results.get("passes", {}).get("points", {}).values()
    if not every and not points:
        return
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attittud", "svg.fonttype": "none", "font.size": 9}
    folder.mkdir(parents=True, exist_ok=True)
    for job in dict.fromkeys(f.job for f in every):
        _mean_step(job, [f for f in every if f.job == job], folder / f"step_{job}.svg")
    if points:
        _passes(list(points), folder / "passes.svg")


def _save(figure: object, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def _mean_step(job: str, every: list[Figures], path: Path) -> None:
    from matplotlib.figure import Figure

    base = Counter(f.point for f in every).most_common(1)[0][0]  # all methods are at the base point
    shown = [f for f in every if f.point == base and f.method != "multitask"]
    if not shown:
        return
    figure = Figure(figsize=(6, 0.28 * len(shown) + 1))
    axes = figure.subplots()
    axes.barh(
        [f"{f.method} ({f.mode})" for f in shown], [f.over[10] for f in shown], color="#4477aa"
    )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("mean step over the multitask step, a refresh every 10 steps")
    axes.set_title(f"{job}, {base}")
    _save(figure, path)


def _passes(points: list[dict[str, object]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3))
    for axes, key, other in zip(figure.subplots(1, 2), ("k", "D"), ("D", "k"), strict=True):
        fixed = max(p["D"] for p in points) if key == "k" else 10
        line = sorted((p for p in points if p[other] == fixed), key=lambda p: p[key])
        for name in ("projection", "correction", "orthonormalise"):
            axes.plot(
                [p[key] for p in line], [1e3 * in_a_graph(p)[name] for p in line], "o-", label=name
            )
        axes.set(xlabel=key, ylabel="ms", xscale="log", yscale="log", title=f"{other} = {fixed:,}")
    axes.legend()
    _save(figure, path)
