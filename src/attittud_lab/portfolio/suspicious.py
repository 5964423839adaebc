"""Auxiliary examples whose labels look wrong, as suspicious.csv and for the report.

The label of an example gets a probability of being right, from models that were not trained on that
example. Measurements of this and of other scores are in docs/appendix/suspicious-labels.md.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attittud_lab.data.prepare import Prepared
from attittud_lab.files import write_atomically
from attittud_lab.learners import Numbers, find_learner
from attittud_lab.portfolio.simple import ALONE, SimpleCandidates
from attittud_lab.portfolio.standing import best_alone
from attittud_lab.portfolio.translations import best_problem
from attittud_lab.predict.outputs import harmless
from attittud_lab.uses.base import SOURCE_LEARNER, SourceModels, fit_source
from attittud_lab.uses.evaluate import fit_final
from attittud_lab.uses.problem import LabelNumbers, Problem, SimpleCandidate, SourceData
from attittud_lab.uses.translated import Translation

FILE = "suspicious.csv"
COLUMNS = (
    "source",
    "example",
    "label",
    "proposed label",
    "probability",
    "probability of the label",
)
RATE = 0.1
"""At most this share of the listed labels is expected to be right."""
SURE = 0.5
"""The proposed class of a listed label has at least this probability."""
PARTS = 5
"""A source is divided into this many parts; each is judged by models of the others."""
MOST_EXAMINED = 10_000
"""How many labels of a larger source are drawn at random, if the learner is the fastest."""
MOST_PRIMARY = 2_000
"""How many primary examples are drawn at random, if there are more: these are enough to judge
labels by.
"""
SHOWN = 8
"""Examples of a source that the report shows."""
MOST_PICTURED = 5
"""Sources whose examples the report shows: the page must stay small."""
SIDE = 64
"""The longest side of a small picture, in pixels."""
LETTERS = 120
"""Letters of a text that the report shows."""
WEIGHT = 1.0
"""The weight of auxiliary rows in the use *translated*. A weight, a setting and a temperature from
the folds found no more wrong labels.
"""
RowNumbers = npt.NDArray[np.int64]


def suspicious(simple: SimpleCandidates, data: Prepared, folder: Path) -> list[dict[str, Any]]:
    """Write suspicious.csv; returns what leaderboard.json says about each source."""
    features, problem = best_problem(simple)
    if problem is None:
        return []
    judge = best_learner(simple, features)
    rows: list[list[str]] = []
    lists: list[dict[str, Any]] = []
    for source in problem.sources.values():
        suspects = examine(problem, source, simple.seed, judge)
        names = example_names(data, source.name, suspects.rows)
        for suspect, name in zip(suspects.listed, names, strict=True):
            rows.append(suspect.cells(source.name, name))
        top: list[dict[str, Any]] = []
        if len(lists) < MOST_PICTURED:
            inputs = shown_inputs(data, source.name, suspects.rows[:SHOWN])
            # Only the first examples of the list are shown, so `inputs` is the shortest.
            for suspect, name, shown in zip(suspects.listed, names, inputs, strict=False):
                top.append(suspect.about(name) | shown)
        lists.append(
            {
                "source": source.name,
                "examined": suspects.examined,
                "labels": int((source.labels >= 0).sum()),
                "listed": len(suspects.listed),
                "same_classes": source.same_classes,
                "rate": RATE,
                "judge": judge,
                "top": top,
            }
        )
    if lists:
        write_csv(folder / FILE, rows)
    return lists


def best_learner(simple: SimpleCandidates, features: str) -> str:
    """Return the learner that is best on the primary labels alone, with these features.

    It judges the labels. A learner that does not fit the classes takes its own errors for wrong
    labels: with 3,000 right labels of a rule about two columns, the linear one listed 275.
    """
    standings = []
    for label, candidate in simple.candidates.items():
        if candidate.features == features and candidate.use == ALONE:
            standings.append(simple.standings[label])
    best = best_alone(standings)
    if best is None:
        return SOURCE_LEARNER
    return simple.candidates[best.label].learner


# --------------------------------------------------------------------------------------- one source


@dataclass(frozen=True)
class Suspect:
    """An auxiliary example whose label looks wrong."""

    row: int
    """Its number in the source, from 0."""
    label: str
    """The label that it has."""
    proposed: str
    """The most probable label."""
    probability: float
    """The probability of the proposed label."""
    label_probability: float
    """The probability of the label that it has."""

    def cells(self, source: str, name: str) -> list[str]:
        """Return a row of the file; `name` is what a person calls the example."""
        texts = map(harmless, (source, name, self.label, self.proposed))
        return [*texts, f"{self.probability:.6g}", f"{self.label_probability:.6g}"]

    def about(self, name: str) -> dict[str, Any]:
        """Return the example as the report shows it."""
        return {
            "example": name,
            "label": self.label,
            "proposed": self.proposed,
            "probability": self.probability,
            "label_probability": self.label_probability,
        }


@dataclass(frozen=True)
class Suspects:
    """What was found in a source."""

    listed: list[Suspect]
    """The least probable label first."""
    examined: int
    """How many labels were examined."""

    @property
    def rows(self) -> RowNumbers:
        """The numbers of the listed examples in the source."""
        return np.array([suspect.row for suspect in self.listed], dtype=np.int64)


def examine(
    problem: Problem, source: SourceData, seed: int, judge: str = SOURCE_LEARNER
) -> Suspects:
    """Find the labels of a source that look wrong; `judge` is the learner of the primary classes.

    Another class must have a probability of at least `SURE`. The list is the longest that keeps to
    `RATE`: with the primary classes its estimated false discovery rate (see `within_rate`), with
    other classes the mean probability of its labels, since no such rate can be estimated there.

    Where an example has several labels at once, each label is a yes/no question with a list of its
    own, and all lists are joined.
    """
    most = MOST_EXAMINED
    if source.same_classes:  # otherwise the judge is not used
        most //= find_learner(judge).slowness
    if len(problem.labels) > MOST_PRIMARY:
        drawn = np.random.default_rng(seed).permutation(len(problem.labels))[:MOST_PRIMARY]
        problem = problem.rows(np.sort(drawn))
    if not source.several:
        return _examine(problem, source, most, seed, judge)
    most = max(1, most // len(source.classes))
    suspects: list[Suspect] = []
    examined = 0
    for question in questions(problem, source):
        part = _examine(*question, most, seed, judge)
        suspects += part.listed
        examined += part.examined
    suspects.sort(key=lambda suspect: suspect.label_probability)
    return Suspects(suspects, examined)


def questions(problem: Problem, source: SourceData) -> Iterator[tuple[Problem, SourceData]]:
    """Yield each label of a source with several at once as a yes/no question: a problem with the
    primary examples that answer it, and a source, both with the classes no and yes.

    Where no primary example answers it, or the source has other labels than the primary examples,
    the problem stays as it is, and the source is judged by its own labels alone.
    """
    for column, name in enumerate(source.classes):
        answers = [f"{name}: no", f"{name}: yes"]
        asked = replace(source, labels=source.labels[:, column], classes=answers)
        if source.same_classes:
            rows = np.flatnonzero(problem.labels[:, column] >= 0)
            if len(rows):
                answered = replace(problem.rows(rows), classes=answers, several=False)
                yield replace(answered, labels=problem.labels[rows, column]), asked
                continue
        yield problem, replace(asked, same_classes=False)


def _examine(problem: Problem, source: SourceData, most: int, seed: int, judge: str) -> Suspects:
    """Find labels that look wrong where each example has one label. At most `most` labels are
    examined, drawn at random; `judge` is the learner of the primary classes.
    """
    rows = np.flatnonzero(source.labels >= 0)
    generator = np.random.default_rng(seed)
    if len(rows) > most:
        rows = np.sort(generator.permutation(rows)[:most])
    part = source.rows(rows)
    likely, by_chance = probabilities(problem, part, generator, seed, judge)
    listed, right = _doubtful(likely, part.labels)
    if by_chance is None:
        # The mean probability of the first n labels. It rises with n, as the probabilities do.
        means = np.cumsum(right) / np.arange(1, len(right) + 1)
        count = int((means <= RATE).sum())
    else:
        count = within_rate(right, _doubtful(by_chance, part.labels)[1])
    suspects = []
    for position in listed[:count]:
        label = part.labels[position]
        proposed = likely[position].argmax()
        suspect = Suspect(
            row=int(rows[position]),
            label=str(source.classes[label]),
            proposed=str(source.classes[proposed]),
            probability=float(likely[position, proposed]),
            label_probability=float(likely[position, label]),
        )
        suspects.append(suspect)
    return Suspects(suspects, len(rows))


def _doubtful(likely: Numbers, labels: LabelNumbers) -> tuple[RowNumbers, Numbers]:
    """Return the rows for which a class other than the label has a probability of `SURE` or more,
    the least probable label first, and the probabilities of their labels.

    `likely` has the probability of each class, rows x classes.
    """
    right = likely[np.arange(len(labels)), labels]
    rows = np.flatnonzero((likely.argmax(axis=1) != labels) & (likely.max(axis=1) >= SURE))
    rows = rows[np.argsort(right[rows], kind="stable")]
    return rows, right[rows]


def within_rate(right: Numbers, by_chance: Numbers) -> int:
    """Return how many labels can be listed at a false discovery rate of at most `RATE`.

    Both arguments are probabilities of doubtful labels in rising order, the second with permuted
    primary labels, which say nothing about the source. Of the labels up to right[n - 1], so many
    are expected by chance that the rate is #{by_chance ≤ right[n - 1]} / n.
    """
    count_by_chance = np.searchsorted(by_chance, right, side="right")
    allowed = np.flatnonzero(count_by_chance <= RATE * np.arange(1, len(right) + 1))
    if len(allowed) == 0:
        return 0
    return int(allowed[-1]) + 1


def probabilities(
    problem: Problem,
    source: SourceData,
    generator: np.random.Generator,
    seed: int,
    judge: str = SOURCE_LEARNER,
) -> tuple[Numbers, Numbers | None]:
    """Return the probability of each class of the source for each of its examples, rows x classes,
    and the same with permuted primary labels (None if primary labels are not used).

    An example gets it from models of the other parts of the source. If the classes are the primary
    ones, it is q(c) ∝ p(c|x) C[c, a], with p of the learner `judge` with the use *translated*, and
    the channel C. So a label is compared with the primary classes, even if the whole source calls
    them by other names. With other classes it is the prediction of a model of the source, as in
    confident learning (Northcutt et al., 2021).
    """
    part_of = generator.permutation(len(source.labels)) % PARTS  # 0 to PARTS - 1, for each example
    likely = np.zeros((len(source.labels), len(source.classes)))
    by_chance = np.zeros_like(likely)
    for part in range(PARTS):
        judged = np.flatnonzero(part_of == part)
        others = np.flatnonzero(part_of != part)
        if not len(judged) or not len(others):
            continue
        training = source.rows(others)
        if not source.same_classes:
            likely[judged] = np.exp(fit_source(training, seed).scores(source.features[judged]))
            continue
        held_out = source.rows(judged)
        models = SourceModels({source.name: training}, seed)
        truthful = replace(problem, sources={source.name: training})
        permuted = replace(truthful, labels=generator.permutation(truthful.labels))
        likely[judged] = _posterior(truthful, held_out, models, seed, judge)
        by_chance[judged] = _posterior(permuted, held_out, models, seed, judge)
    if not source.same_classes:
        return likely, None
    return likely, by_chance


def _posterior(
    problem: Problem, held_out: SourceData, models: SourceModels, seed: int, judge: str
) -> Numbers:
    """Return q(c) of held-out examples of the only source of a problem, rows x classes.

    `judge` is fitted with the use *translated* to the primary examples and the rest of the source.
    """
    source = problem.sources[held_out.name]
    candidate = SimpleCandidate("", judge, "translated", (source.name,))
    settings = find_learner(judge).fewer_settings(problem.several)
    # The setting in the middle of the learner's list; see WEIGHT for why none is chosen.
    setting = {**settings[len(settings) // 2], "weight": WEIGHT}
    model = fit_final(problem, candidate, setting, seed=seed, models=models)
    channel = Translation.estimate(source, problem, models, seed).channel
    scores = torch.from_numpy(model.scores(held_out.features))
    posterior: Numbers = channel.posterior(scores, torch.from_numpy(held_out.labels)).numpy()
    return posterior


# ------------------------------------------------------------------------- what a person sees of it


def write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write the list. Every cell is in quotes, so that a line break in a name does not begin a
    row.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def example_names(data: Prepared, source: str, rows: RowNumbers) -> list[str]:
    """Return what a person calls these examples: files, or rows of the source."""
    if data.parts is None:
        return [f"{source}, row {row + 1}" for row in rows.tolist()]
    part = data.parts.auxiliary[source]
    return part.listing.named(part.rows[rows])


def shown_inputs(data: Prepared, source: str, rows: RowNumbers) -> list[dict[str, str]]:
    """Return what the report shows of each example: a small picture, the beginning of the text, or
    nothing for a row of a table.
    """
    if data.kind == "text" and data.parts is not None:
        part = data.parts.auxiliary[source]
        return [{"text": str(text)[:LETTERS]} for text in part.listing.fetch(part.rows[rows])]
    if data.kind == "image":
        pixels = data.auxiliary[source].examples.inputs[torch.from_numpy(rows)]
        return [{"picture": small_picture(image)} for image in pixels.cpu()]
    return [{}] * len(rows)


def small_picture(pixels: Tensor) -> str:
    """Return an image (channels x height x width, uint8) as the source of an HTML image."""
    from PIL import Image

    array = pixels.permute(1, 2, 0).contiguous().numpy()
    if array.shape[2] == 1:
        array = array[:, :, 0]
    image = Image.fromarray(array)
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
