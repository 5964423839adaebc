"""eta="auto": held-out primary examples, the *judges*, decide how much weight each part of an
auxiliary gradient gets.

In the step that uses them, judges neither build the basis nor train the model. The score of a part
is its cosine with the judges' mean gradient g_judge. It says how much a small step along this part
would help examples that had no influence on it. All scores come from k-vectors and inner products
(V g_judge, ⟨g_judge, g_aux⟩, norms); only g_judge itself is as long as the model.

A step uses weights from the scores of earlier steps, so no weight depends on the batch that it is
applied to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from attittud._checks import check_callable
from attittud._torch import is_compiled
from attittud.autograd.forward import BatchNormMode, isolated_forward
from attittud.autograd.layout import Layout, converts, written_into
from attittud.decompose import Weights
from attittud.report import SCORED, EarnedWeights
from attittud.step.gradients import Losses, check_reaches, losses_of
from attittud.step.shared import Shared

SMALL = 1 << 24  # shared parameters: 64 MB
MEMORY = 0.95  # how much of the running scores is kept when new scores arrive
CAUTION = 3.0
"""A standard error from n scores is multiplied by 1 + CAUTION / (n - 1), because a few scores may
agree by chance.
"""
DISTINCT = 4.0
"""If the score of a part differs from the whole gradient's by this many standard deviations, the
mean of both is used.
"""
DOUBTED = 1.0
CERTAIN = 3.0
"""Scores in standard errors: up to the first number the weight is 0, from the second number on it
is 1.
"""


def earned(score: Tensor, spread: Tensor, error: Tensor) -> Tensor:
    """Weights of the three parts, from mean, standard deviation and standard error of the scores in
    `SCORED`.

    A part gets the score of the whole auxiliary gradient unless its own score clearly differs. Its
    weight grows with the certainty that the score is above 0.
    """
    parts = score[:3]
    whole = score[3]
    tiny = torch.finfo(score.dtype).tiny
    distance = (parts - whole).square()
    doubt = DISTINCT**2 * (spread[:3].square() + spread[3].square())
    believed = whole + distance / (distance + doubt).clamp(min=tiny) * (parts - whole)
    weights = (believed - DOUBTED * error[3]) / ((CERTAIN - DOUBTED) * error[3]).clamp(min=tiny)
    return torch.where(torch.isfinite(error[3]), weights.clamp(0, 1), 0.0)


class TaskScores:
    """The running scores of one auxiliary task.

    The tensors stay on the device and at the same address, because a captured CUDA graph may refer
    to them.
    """

    def __init__(self, device: torch.device) -> None:
        self.moments = torch.zeros(3, len(SCORED), dtype=torch.float64, device=device)
        """Decaying sums of the cosines, of their squares, and of ones."""
        self.weights = torch.zeros(3, dtype=torch.float64, device=device)  # set when scores arrive
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        """How many scores were left out, because they had NaN or Inf or the judges had no
        gradient.
        """
        self.known = torch.empty(3, len(SCORED), dtype=torch.float64, device=device)
        """Means, standard deviations and standard errors of the cosines. They are kept, because
        most steps only report them.
        """
        self._work_out()

    def _work_out(self) -> None:
        """Compute mean, standard deviation and standard error from the moments."""
        total, squared, mass = self.moments
        least = mass.clamp(min=1 - MEMORY)
        score = total / least  # 0 before the first score
        # How many equally weighted scores would give as precise a mean.
        squares = (1 - MEMORY) / (1 + MEMORY) * (1 - (1 - mass).square())
        count = mass.square() / squares.clamp(min=torch.finfo(mass.dtype).tiny)
        others = count - 1
        doubtful = others.clamp(min=0.5)
        # The variance between scores. After a single score the deviation is infinite.
        variance = (squared / least - score.square()).clamp(min=0)
        spread = torch.where(others > 0.5, variance * count / doubtful, torch.inf).sqrt()
        error = spread / count.clamp(min=1).sqrt() * (1 + CAUTION / doubtful)
        self.known.copy_(torch.stack([score, spread, error]))

    def add(self, cosines: Tensor) -> None:
        """Add the cosines of one step; cosines that are not finite change nothing."""
        finite = torch.isfinite(cosines).all()
        new = MEMORY * self.moments + (1 - MEMORY) * torch.stack(
            [cosines, cosines.square(), torch.ones_like(cosines)]
        )
        self.moments.copy_(torch.where(finite, new, self.moments))
        self._work_out()
        self.weights.copy_(torch.where(finite, earned(*self.known), self.weights))
        self.skipped += ~finite

    def tensors(self) -> list[Tensor]:
        """All tensors, which change together."""
        return [self.moments, self.weights, self.skipped, self.known]

    def copied_to(self, device: torch.device) -> TaskScores:
        """Copy the scores after the model has moved to another device."""
        copy = TaskScores(device)
        for new, old in zip(copy.tensors(), self.tensors(), strict=True):
            new.copy_(old)
        return copy

    def state(self) -> dict[str, Any]:
        """Return plain numbers for `Guide.state_dict`; `known` follows from them."""
        return {
            "moments": self.moments.tolist(),
            "weights": self.weights.tolist(),
            "skipped": int(self.skipped),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state in place, so that addresses stay the same."""
        self.moments.copy_(self.moments.new_tensor(state["moments"]))
        self.weights.copy_(self.weights.new_tensor(state["weights"]))
        self.skipped.fill_(state["skipped"])
        self._work_out()


class AutoWeights:
    """Keeps the scores of a guide's auxiliary tasks, and uses the judges in every n-th step."""

    def __init__(
        self, shared: Shared, is_auto: bool, every: int, seed: int, batch_norm: BatchNormMode
    ) -> None:
        self.model = shared.model
        self.workers = shared.workers
        self.wanted = is_auto
        self.every = every
        self.seed = seed
        self.batch_norm = batch_norm
        self.scores: dict[str, TaskScores] = {}
        self.age: int | None = None  # steps since the judges were last used; None: never
        self.count = 0
        self._reached: tuple[bool, ...] = ()
        """Which shared parameters got a gradient when the judges were last used."""
        self.converts = False
        """Whether the judges' forward passes convert types of parameters, as under autocast."""
        self.draws: bool | None = None
        """Whether these passes may draw random numbers; None: not known yet."""

    @property
    def due(self) -> bool:
        """Whether the next step uses the judges if it gets any."""
        return self.wanted and (self.age is None or self.age >= self.every)

    def asks(self, judge: object) -> bool:
        """Whether this step uses the judges that it gets."""
        check_callable("judge", judge)
        if judge is not None and not self.wanted:
            raise ValueError(
                "judge= is only used with eta='auto', but every eta of this guide is fixed; leave it out"
            )
        return judge is not None and self.due

    def check(self, judged: list[str], *, asked: bool) -> None:
        """Refuse losses with eta='auto' (`judged`) if the judges have never been used."""
        if judged and self.age is None and not asked:
            raise ValueError(
                f"auxiliary loss {judged[0]!r} has eta='auto', which needs judges: pass judge= (or call judge() before "
                "auxiliary()), a callable that returns the losses of primary examples that are not used for training. After "
                "its first use it may be left out, and the weights stay as they are"
            )

    def gradient(self, judge: Losses, layout: Layout) -> Tensor:
        """Compute the mean gradient of the judges of all workers, over the shared parameters.

        The library controls the forward pass as for `basis_losses`: without dropout, and without
        changes to BatchNorm or to the random state.
        """
        # A large gradient is written straight into one vector, so that it is not in memory twice.
        # For a small gradient this would be slower.
        flat: Tensor | None = None
        if self.workers.size == 1 and layout.size > SMALL:
            flat = layout.empty()
        passed = None
        while passed is None:  # at most twice
            passed = _asked(self, judge, layout, flat)
        losses, gradients = passed
        # The judges' losses must reach shared parameters. The graph is walked again only if the set
        # of gradients has changed.
        reached = tuple(g is not None for g in gradients)
        if reached != self._reached and losses.numel() > 0 and not self.workers.splits_columns:
            self.converts = converts(check_reaches(losses, "judge", layout))
        self._reached = reached
        if flat is None:
            flat, _ = layout.flatten_and_view(gradients)
        if self.workers.splits_examples:
            self.workers.sum_examples_(flat, "judges' gradients")
        return flat

    def weights(self, name: str, device: torch.device) -> Weights:
        """Return a copy of a task's weights from the scores of earlier steps: a report may be read
        later.
        """
        if name not in self.scores:
            self.scores[name] = TaskScores(device)
        elif self.scores[name].moments.device != device:  # the model has moved
            self.scores[name] = self.scores[name].copied_to(device)
        return Weights(*self.scores[name].weights.clone().unbind())

    def close(self, cosines: Mapping[str, Tensor], *, asked: bool) -> None:
        """End a step: add the cosines of the tasks, if the judges were used."""
        for name, cosine in cosines.items():
            self.scores[name].add(cosine)
        if asked:
            self.age = 0
            self.count += 1
        if self.age is not None:
            self.age += 1

    def count_replay(self, *, judge: bool) -> None:
        """Count a step that a CUDA graph has replayed."""
        if self.age is not None:
            self.age += 1
            if judge:
                self.age = 1
        self.count += judge

    def report(self, name: str, weights: Weights) -> EarnedWeights:
        """Return the weights of this step, and the scores after it."""
        scores = self.scores[name]
        score, _, error = scores.known.clone()
        return EarnedWeights(weights, score, error, scores.skipped.clone())

    def restore(self, names: Iterable[str]) -> None:
        """Go back to an earlier state: forget the tasks that were not known then."""
        self.scores = {name: self.scores[name] for name in names}

    def state(self) -> dict[str, Any]:
        """Return plain numbers for `Guide.state_dict`, to be read by `read`."""
        return {
            "age": self.age,
            "count": self.count,
            "records": {name: s.state() for name, s in self.scores.items()},
        }

    def read(
        self, state: Mapping[str, Any] | None
    ) -> tuple[int | None, int, dict[str, TaskScores]]:
        """Read a saved state, for `load`. None comes from a guide with fixed weights, which has no
        scores.
        """
        if state is None or not self.wanted:
            return None, 0, {}
        device = next(self.model.parameters()).device
        scores = {}
        try:
            for name, saved in state["records"].items():
                scores[name] = TaskScores(device)
                scores[name].load(saved)
            age = state["age"]
            if age is not None:
                age = int(age)
            return age, int(state["count"]), scores
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"'judges' in the Guide's state cannot be read ({type(error).__name__}: {error}); load another copy, or leave "
                "the state out"
            ) from None

    def load(self, age: int | None, count: int, scores: dict[str, TaskScores]) -> None:
        """Continue from what `read` returned."""
        self.age = age
        self.count = count
        self.scores = scores


def _asked(
    auto: AutoWeights, judge: Losses, layout: Layout, flat: Tensor | None
) -> tuple[Tensor, Sequence[Tensor | None]] | None:
    """Return the judges' losses and their gradients; the gradients are written into `flat` if it is
    given.

    None: this forward pass drew random numbers, although the first one did not. Run it again
    without dropout.
    """
    seed = (auto.seed * 1_000_003 + 7 + auto.count) & (2**63 - 1)
    with isolated_forward(
        auto.model, auto.batch_norm, seed, draws=auto.draws is not False
    ) as isolated:
        more = (
            "return the losses of at least two examples, or make the guide with batch_norm='frozen'"
        )
        losses = losses_of(judge, "judge", more, auto.workers)
        if auto.draws is None:
            # One worker cannot run again without the others, and code would be compiled once more.
            auto.draws = isolated.drawn or auto.workers.size > 1 or is_compiled(auto.model)
        elif not auto.draws and isolated.drawn:
            auto.draws = True
            return None
        into: Layout | None = None
        writing: AbstractContextManager[Any] = nullcontext()
        if flat is not None:
            writing = written_into(layout, flat)
        elif auto.converts:
            into = layout
        with writing:
            weights = auto.workers.shares([losses])[0].weights(losses)
            # A parameter may have been frozen since the last refresh.
            trainable = [p for p in layout.parameters if p.requires_grad]
            gradients = auto.workers.gradients(
                losses, weights, trainable, retain_graph=False, into=into
            )
            by_id = dict(zip(map(id, trainable), gradients, strict=True))
            return losses, [by_id.get(id(p)) for p in layout.parameters]
