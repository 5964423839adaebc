"""What the labels of auxiliary sources mean for the primary classes, with intervals and as
sentences.

`run.py` calls `translations` at the end, for leaderboard.json. The report shows the tables, and the
terminal prints the clearest sentence of each source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from attittud_lab.data.tasks import mix
from attittud_lab.learners import Numbers
from attittud_lab.portfolio import words
from attittud_lab.portfolio.intervals import FEWEST_GROUPS
from attittud_lab.portfolio.simple import SimpleCandidates
from attittud_lab.portfolio.standing import rank, usable
from attittud_lab.uses.base import SourceModels
from attittud_lab.uses.landmarks import with_fewer_columns
from attittud_lab.uses.problem import LabelNumbers, Problem, SourceData
from attittud_lab.uses.translated import Translation, label_shares

DRAWS = 200
"""How many draws of the primary labels an interval is made from."""
MOST_NAMES = 25
"""With more classes or labels there is no room for a matrix, here and for the confusions of the
report: the largest entries are listed.
"""
LISTED = 12
"""Rows of such a list."""
PERMUTATIONS, MANY = 10, 5000
"""Permutations of the labels in each draw. With more labels than the second number one is
enough.
"""
SENTENCES = 5
"""The clearest translations of a source, at most."""
YES = 1
"""The number of yes among the answers to a yes/no question; no has 0."""
_CLOSED = 1e-12
"""A mutual information below this is rounding."""


def translations(
    simple: SimpleCandidates, groups: Sequence[str] | None, seed: int
) -> list[dict[str, Any]]:
    """Return the table of each source that has labels, for leaderboard.json.

    `groups` are those of the primary examples, if there are any. Sources are translated on the
    features of the best simple candidate.
    """
    features, problem = best_problem(simple)
    if problem is None:
        return []
    counts = draw_counts(len(problem.labels), groups, mix(seed, "translations"))
    models = SourceModels(problem.sources, simple.seed)
    tables = []
    for source in problem.sources.values():
        table = translate(problem, source, models, counts, simple.seed)
        tables.append({"features": features, **table})
    return tables


def best_problem(simple: SimpleCandidates) -> tuple[str, Problem | None]:
    """Return the features of the best simple candidate and the problem on them, with fewer columns
    where they are sparse; the problem is None if there is no candidate.
    """
    best = max(usable(simple.standings.values()), key=rank, default=None)
    if best is None:
        return "", None
    features = simple.candidates[best.label].features
    return features, with_fewer_columns(simple.problems[features], simple.seed)


# --------------------------------------------------------------------------------------- one source


def translate(
    problem: Problem, source: SourceData, models: SourceModels, counts: Numbers | None, seed: int
) -> dict[str, Any]:
    """Return the table of a source.

    Rows are the primary classes, and columns the labels of the source. An entry is C[c, a] of the
    label channel. Where an example has several labels at once, each label is a yes/no question with
    a channel of its own, and an entry is the probability of yes for an example with yes.
    """
    translation = Translation.estimate(source, problem, models, seed)
    matrix = translation.channel.matrix.numpy()
    openness = translation.channel.openness.numpy()
    probabilities = source_probabilities(problem, source, models)
    shares = label_shares(source.labelled)
    # The channels get two axes in front: the source's yes/no questions, and the primary ones. Where
    # an example has one label, there is a single question, and its axis has length 1.
    if not source.several:
        matrix = matrix[None]
        openness = openness[None]
        probabilities = probabilities[:, None]
        shares = shares[None]
    labels = problem.labels
    if not problem.several:
        matrix = matrix[:, None]
        openness = openness[:, None]
        labels = labels[:, None]
    # matrix: source's questions x primary questions x classes x labels; openness: the first two
    cells: list[Cell] = []
    openness_of_channels = []
    for question, task in np.ndindex(openness.shape):
        channel = Channel(
            matrix[question, task],
            float(openness[question, task]),
            shares[question],
            probabilities[:, question],
            labels[:, task],
        )
        drawn = channel.drawn(counts)
        questions = []
        rows: Iterable[int] = range(len(channel.matrix))
        columns: Iterable[int] = range(len(channel.shares))
        # The channel of a yes/no question has two rows or columns. The table has only the one of
        # yes, in the row or the column of the question.
        place_in_table = {}
        if problem.several:
            questions.append(str(problem.classes[task]))
            rows = [YES]
            place_in_table["row"] = task
        if source.several:
            questions.append(str(source.classes[question]))
            columns = [YES]
            place_in_table["column"] = question
        for cell in channel.cells(drawn, rows, columns):
            cells.append(replace(cell, **place_in_table))
        of_channel = _estimate(channel.openness, drawn.openness)
        openness_of_channels.append({"of": questions, **of_channel})
    meanings_in_source = models.own_meanings(source.name)
    return _table(problem, source, openness_of_channels, cells, meanings_in_source)


def source_probabilities(problem: Problem, source: SourceData, models: SourceModels) -> Numbers:
    """Return what the source's model predicts for primary examples.

    Shape n x labels; with several labels at once n x labels x 2, for no and yes.
    """
    scores = models.model(source.name).scores(problem.features)
    if not source.several:
        return np.asarray(np.exp(scores))
    yes = 0.5 * (1 + np.tanh(0.5 * scores))  # the sigmoid, without overflow
    return np.stack([1 - yes, yes], axis=-1)


Estimate = dict[str, Any]
"""A value with the ends `low` and `high` of its 95 % interval, None where there is no interval."""


@dataclass(frozen=True)
class Cell:
    """How often a primary class has an auxiliary label, and what the label means."""

    row: int
    column: int
    value: Estimate
    """C[c, a]."""
    meaning: Estimate
    """p(c|a) ∝ C[c, a] times the share of c: the share of class c among examples with this
    label.
    """
    clearness: float
    """How far the low end of the meaning is above the share of class c; -inf if the channel may be
    closed.
    """
    label_share: float
    """π(a), the share of the label in the source. A closed channel has C[c, a] = π(a)."""

    @property
    def excess(self) -> float:
        """C[c, a] − π(a): how much more often than in the whole source class c has the label."""
        return float(self.value["value"]) - self.label_share


@dataclass(frozen=True)
class Drawn:
    """A channel in each draw of the primary labels; empty arrays without draws."""

    openness: Numbers
    matrix: Numbers
    """draws x classes x labels."""
    meaning: Numbers


@dataclass(frozen=True)
class Channel:
    """One label channel with the predictions and labels that it was estimated from."""

    matrix: Numbers
    """C, classes x labels."""
    openness: float
    shares: Numbers
    """π, one for each label."""
    probabilities: Numbers
    """p_s(a|x) for the primary examples, n x labels."""
    labels: LabelNumbers
    """Class numbers of the primary examples, n; -1 where there is none."""

    def drawn(self, counts: Numbers | None) -> Drawn:
        """Estimate the channel again in each draw; `counts` says how often an example was drawn,
        draws x n.

        Copies of an example raise the mutual information I of a draw, and also that of permuted
        labels, Ī. So the information beyond chance is T = I − Ī of the same draw, and with the Ī of
        all examples λ = max(0, T / (T + Ī)). For all examples this is 1 − Ī / I. The matrix is
        λ (sums + π) / (sizes + 1) + (1 − λ) π, with the sums and sizes of each class.
        """
        classes, width = self.matrix.shape
        if counts is None:
            nothing = np.empty((0, classes, width))
            return Drawn(np.empty(0), nothing, nothing)
        by_chance = self.information_by_chance(np.ones((1, counts.shape[1])))[0]
        sums = self.sums(counts, self.labels)
        beyond = (information(sums) - self.information_by_chance(counts)).clip(min=0)
        openness = beyond / np.maximum(beyond + by_chance, _CLOSED)
        sizes = self.class_counts(counts)
        estimate = (sums + self.shares) / (sizes + 1)[:, :, None]
        weight = openness[:, None, None]
        matrix = weight * estimate + (1 - weight) * self.shares
        return Drawn(openness, matrix, meanings(matrix, sizes))

    def information_by_chance(self, counts: Numbers) -> Numbers:
        """Return Ī in each draw: the mean mutual information over permutations of the labels."""
        labelled = np.flatnonzero(self.labels >= 0)
        generator = np.random.default_rng(len(labelled))
        permutations = PERMUTATIONS
        if len(labelled) > MANY:
            permutations = 1
        total = np.zeros(len(counts))
        for _ in range(permutations):
            labels = self.labels.copy()
            labels[labelled] = generator.permutation(labels[labelled])
            total += information(self.sums(counts, labels))
        return total / permutations

    def sums(self, counts: Numbers, labels: LabelNumbers) -> Numbers:
        """Sum the probabilities of the examples of each class: draws x classes x labels."""
        parts = []
        for number in range(len(self.matrix)):
            rows = labels == number
            parts.append(counts[:, rows] @ self.probabilities[rows])
        return np.stack(parts, axis=1)

    def class_counts(self, counts: Numbers) -> Numbers:
        """Count the examples of each class: draws x classes."""
        sizes = []
        for number in range(len(self.matrix)):
            sizes.append(counts[:, self.labels == number].sum(axis=1))
        return np.stack(sizes, axis=1)

    def cells(self, drawn: Drawn, rows: Iterable[int], columns: Iterable[int]) -> Iterator[Cell]:
        """Yield these entries of the matrix, row by row, with intervals from the draws."""
        sizes = self.class_counts(np.ones((1, len(self.labels))))
        class_shares = sizes[0] / max(1.0, sizes.sum())
        matrix_of_meanings = meanings(self.matrix[None], sizes)[0]
        lowest_openness = _estimate(self.openness, drawn.openness)["low"]
        is_open = lowest_openness is not None and lowest_openness > 0
        for row, column in product(rows, columns):
            value = _estimate(self.matrix[row, column], drawn.matrix[:, row, column])
            meaning = _estimate(matrix_of_meanings[row, column], drawn.meaning[:, row, column])
            clearness = -math.inf
            if is_open and meaning["low"] is not None:
                clearness = meaning["low"] - class_shares[row]
            yield Cell(row, column, value, meaning, clearness, float(self.shares[column]))


def meanings(matrix: Numbers, sizes: Numbers) -> Numbers:
    """Return p(c|a) ∝ C[c, a] n_c for each draw, draws x classes x labels, from C of each draw (of
    the same shape) and the sizes n of the classes, draws x classes.
    """
    joint = matrix * sizes[:, :, None]
    return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), _CLOSED))


def information(sums: Numbers) -> Numbers:
    """Return the mutual information of class and label of each draw, in nats.

    `sums`, draws x classes x labels, are divided by their total to become joint probabilities p.
    The information is Σ p log(p / q), with the product q of the two margins of p.
    """
    total = np.maximum(sums.sum(axis=(1, 2), keepdims=True), _CLOSED)
    joint = sums / total
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=2, keepdims=True)
    ratio = np.where(joint > 0, joint / np.where(independent > 0, independent, 1), 1.0)
    return np.asarray((joint * np.log(ratio)).sum(axis=(1, 2)))


def draw_counts(examples: int, groups: Sequence[str] | None, seed: int) -> Numbers | None:
    """Draw the examples with replacement, or whole groups of them, and count how often each was
    drawn.

    Returns draws x n; None if there are too few groups for an interval.
    """
    generator = np.random.default_rng(seed)
    if groups is None:
        number_of: npt.NDArray[np.int64] = np.arange(examples)
    else:
        number_of = np.unique(groups, return_inverse=True)[1]
        if number_of.max() + 1 < FEWEST_GROUPS:
            return None
    units = int(number_of.max()) + 1
    counts = np.empty((DRAWS, examples))
    for draw in range(DRAWS):
        drawn = np.bincount(generator.integers(units, size=units), minlength=units)
        counts[draw] = drawn[number_of]
    return counts


def _estimate(value: float, draws: Numbers) -> Estimate:
    """Return a value with the ends of its 95 % interval, which contains the value itself."""
    value = float(value)
    if not len(draws):
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": value, "low": min(float(low), value), "high": max(float(high), value)}


# -------------------------------------------------------------------------------------- the content


def _table(
    problem: Problem,
    source: SourceData,
    openness: list[dict[str, Any]],
    cells: list[Cell],
    meanings_in_source: Numbers,
) -> dict[str, Any]:
    """Return what leaderboard.json says about a source.

    `openness` has λ of each channel with its interval. `meanings_in_source` has what each label
    means by the source's own labels: its share among the examples to which a model of the source
    gives it (see `SourceModels.own_meanings`). With many classes or labels, only the entries with the largest
    excess are kept.
    """
    if problem.several:
        sizes = (problem.labels == 1).sum(axis=0)
    else:
        sizes = np.bincount(problem.labels[problem.labels >= 0], minlength=len(problem.classes))
    whole = max(len(problem.classes), len(source.classes)) <= MOST_NAMES
    shown = cells
    if not whole:
        shown = sorted(cells, key=lambda cell: -cell.excess)[:LISTED]
    entries = []
    for cell in shown:
        place = {"class": cell.row, "label": cell.column}
        entries.append({**place, **cell.value, "meaning": cell.meaning["value"]})
    return {
        "source": source.name,
        "classes": list(map(str, problem.classes)),
        "counts": sizes.tolist(),
        "labels": list(map(str, source.classes)),
        "several": problem.several or source.several,
        "openness": openness,
        "whole": whole,
        "entries": entries,
        "sentences": _sentences(problem, source, cells, meanings_in_source),
    }


def _sentences(
    problem: Problem, source: SourceData, cells: list[Cell], meanings_in_source: Numbers
) -> list[dict[str, Any]]:
    """Return the clearest translations, one for each label at most: that with the largest meaning.

    A translation is clear if its channel is open, and if the whole interval of its meaning is above
    the share of the class. `meanings_in_source` is NaN for labels where it is not known.
    """
    best: dict[int, Cell] = {}
    for cell in cells:
        if cell.clearness <= 0:
            continue
        best_so_far = best.setdefault(cell.column, cell)
        if cell.meaning["value"] > best_so_far.meaning["value"]:
            best[cell.column] = cell
    clearest = sorted(best.values(), key=lambda cell: cell.clearness, reverse=True)
    sentences = []
    for cell in clearest[:SENTENCES]:
        label = str(source.classes[cell.column])
        name = str(problem.classes[cell.row])
        in_source: float | None = None
        if not math.isnan(meanings_in_source[cell.column]):
            in_source = float(meanings_in_source[cell.column])
        text = words.translation(source.name, label, name, cell.meaning, in_source)
        sentence = {"label": label, "class": name, **cell.meaning, "own": in_source, "text": text}
        sentences.append(sentence)
    return sentences
