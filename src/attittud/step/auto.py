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
from attittud.report import PARTS, SCORED, WHOLE, EarnedWeights
from attittud.step.gradients import Losses, check_reaches, losses_of
from attittud.step.shared import Shared

SMALL = 1 << 24
"""The most shared parameters (64 MB) whose gradient is copied into one vector, which is faster than
writing it there.
"""
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
    """Compute the weights of the neutral, helpful and harmful part (3), each from 0 to 1.

        d        = score of the part - score of the whole auxiliary gradient
        believed = score of the whole + d * d² / (d² + DISTINCT² (σ_part² + σ_whole²))
        weight   = (believed / error - DOUBTED) / (CERTAIN - DOUBTED), cut to 0 ... 1

    So a part gets the score of the whole unless its own score clearly differs, and its weight grows
    with the certainty that the believed score is above 0.

    Args:
        score: running means of the cosines of the gradients in `SCORED` (5).
        spread: σ, the standard deviations of these cosines (5).
        error: standard errors of the means (5).
    """
    tiny = torch.finfo(score.dtype).tiny  # 0 / tiny is 0, and not NaN
    whole = score[WHOLE]
    difference = score[PARTS] - whole
    distance = difference.square()
    # Standard deviations, not errors. An error shrinks with the number of scores, so after many
    # scores even a slight difference would count as clear.
    doubt = DISTINCT**2 * (spread[PARTS].square() + spread[WHOLE].square())
    believed = whole + distance / (distance + doubt).clamp(min=tiny) * difference
    # Every believed score begins with the score of the whole, so the error of the whole applies.
    error_of_whole = error[WHOLE]
    rise = (CERTAIN - DOUBTED) * error_of_whole  # over these scores a weight rises from 0 to 1
    weights = (believed - DOUBTED * error_of_whole) / rise.clamp(min=tiny)
    # The error is infinite after a single score, which shows nothing.
    return torch.where(torch.isfinite(error_of_whole), weights.clamp(0, 1), 0.0)


class TaskScores:
    """The running scores of one auxiliary task.

    The tensors stay on the device and at the same address, because a captured CUDA graph may refer
    to them.
    """

    def __init__(self, device: torch.device) -> None:
        self.moments = torch.zeros(3, len(SCORED), dtype=torch.float64, device=device)
        """Decaying sums of the cosines, of their squares, and of ones (3 x 5)."""
        self.weights = torch.zeros(3, dtype=torch.float64, device=device)
        """The weights of the neutral, helpful and harmful part; `add` computes them."""
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        """In how many steps the scores were left out, because they had NaN or Inf or the judges had
        no gradient.
        """
        self.statistics = torch.empty(3, len(SCORED), dtype=torch.float64, device=device)
        """Means, standard deviations and standard errors of the cosines (3 x 5). They are kept,
        because most steps only report them.
        """
        self._update_statistics()

    def _update_statistics(self) -> None:
        """Compute mean, standard deviation and standard error of the cosines from the moments.

        With c_i the cosine of i scores ago and w_i = (1 - MEMORY) MEMORY^i its weight:

            mean     = Σ w_i c_i / Σ w_i
            n        = (Σ w_i)² / Σ w_i²        so many equal weights would give as precise a mean
            variance = (Σ w_i c_i² / Σ w_i - mean²) n / (n - 1)
            error    = √(variance / n) (1 + CAUTION / (n - 1))
        """
        total, total_of_squares, mass = self.moments
        # The mass is 0 before the first score, and at least 1 - MEMORY after it.
        divisor = mass.clamp(min=1 - MEMORY)
        mean = total / divisor
        # The sum of w_i², which follows from the mass: Σ w_i = 1 - MEMORY^(number of scores).
        squared_weights = (1 - MEMORY) / (1 + MEMORY) * (1 - (1 - mass).square())
        count = mass.square() / squared_weights.clamp(min=torch.finfo(mass.dtype).tiny)
        # n - 1 is 0 after one score and nearly 1 after two. A single score has no spread yet, so
        # the deviation is infinite.
        several = count - 1 > 0.5
        others = (count - 1).clamp(min=0.5)
        variance = (total_of_squares / divisor - mean.square()).clamp(min=0)
        spread = torch.where(several, variance * count / others, torch.inf).sqrt()
        error = spread / count.clamp(min=1).sqrt() * (1 + CAUTION / others)
        self.statistics.copy_(torch.stack([mean, spread, error]))

    def add(self, cosines: Tensor) -> None:
        """Add the cosines of one step (5, as in `SCORED`), and compute the weights of later steps.

        If one of the cosines is not finite, only `skipped` changes.
        """
        finite = torch.isfinite(cosines).all()
        new = MEMORY * self.moments + (1 - MEMORY) * torch.stack(
            [cosines, cosines.square(), torch.ones_like(cosines)]
        )
        self.moments.copy_(torch.where(finite, new, self.moments))
        self._update_statistics()
        self.weights.copy_(torch.where(finite, earned(*self.statistics), self.weights))
        self.skipped += ~finite

    def tensors(self) -> list[Tensor]:
        """All tensors, which change together."""
        return [self.moments, self.weights, self.skipped, self.statistics]

    def copied_to(self, device: torch.device) -> TaskScores:
        """Copy the scores after the model has moved to another device."""
        copy = TaskScores(device)
        for new, old in zip(copy.tensors(), self.tensors(), strict=True):
            new.copy_(old)
        return copy

    def state(self) -> dict[str, Any]:
        """Return plain numbers for `Guide.state_dict`; `statistics` follows from them."""
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
        self._update_statistics()


class AutoWeights:
    """Keeps the scores of a guide's auxiliary tasks, and uses the judges in every n-th step."""

    def __init__(
        self, shared: Shared, is_auto: bool, every: int, seed: int, batch_norm: BatchNormMode
    ) -> None:
        self.model = shared.model
        self.workers = shared.workers
        self.is_auto = is_auto
        """Whether the weights of some task come from judges. If not, nothing here is used."""
        self.every = every
        self.seed = seed
        self.batch_norm = batch_norm
        self.scores: dict[str, TaskScores] = {}
        self.age: int | None = None
        """How many steps there were since the judges were last used, that step included; None: they
        never were.
        """
        self.count = 0
        """How often the judges were used. Each time they get random numbers of their own."""
        self._reached: tuple[bool, ...] = ()
        """Which shared parameters got a gradient when the judges were last used."""
        self.converts = False
        """Whether the judges' forward passes convert types of parameters, as under autocast."""
        self.draws: bool | None = None
        """Whether these passes may draw random numbers; None: not known yet."""

    @property
    def due(self) -> bool:
        """Whether the next step uses the judges if it gets any."""
        return self.is_auto and (self.age is None or self.age >= self.every)

    def asks(self, judge: object) -> bool:
        """Whether this step uses the judges that it gets."""
        check_callable("judge", judge)
        if judge is not None and not self.is_auto:
            raise ValueError(
                "judge= is only used with eta='auto', but every eta of this guide is fixed; leave it out"
            )
        return judge is not None and self.due

    def check(self, judged: list[str], *, asked: bool) -> None:
        """Refuse losses with eta='auto' (`judged`, by name) if the judges have never been used and
        are not used in this step either (`asked`).
        """
        if judged and self.age is None and not asked:
            raise ValueError(
                f"auxiliary loss {judged[0]!r} has eta='auto', which needs judges: pass judge= (or call judge() before "
                "auxiliary()), a callable that returns the losses of primary examples that are not used for training. After "
                "its first use it may be left out, and the weights stay as they are"
            )

    def gradient(self, judge: Losses, layout: Layout) -> Tensor:
        """Compute the mean gradient of the judges of all workers, over the shared parameters (D).

        `judge` returns a loss for each of this worker's judges. The library controls the forward
        pass as for `basis_losses`: without dropout, and without changes to BatchNorm or to the
        random state.
        """
        # A large gradient is written straight into one vector, so that it is not in memory twice.
        # For a small gradient this would be slower.
        flat: Tensor | None = None
        if self.workers.size == 1 and layout.size > SMALL:
            flat = layout.empty()
        result = None
        while result is None:  # at most twice
            result = _run_judges(self, judge, layout, flat)
        losses, gradients = result
        # The judges' losses must reach shared parameters. The graph is walked again only if other
        # parameters than last time got a gradient. (The graph of a sharded model ends in other
        # tensors than the parameters, and without judges on this worker there is no graph.)
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
        """End a step: add the cosines of the tasks, by name, and count the steps since the judges
        were used. `asked`: whether this step used them.
        """
        for name, cosine in cosines.items():
            self.scores[name].add(cosine)
        if asked:
            self.age = 0
            self.count += 1
        if self.age is not None:
            self.age += 1

    def count_replay(self, *, judge: bool) -> None:
        """Count a step that a CUDA graph has replayed. `judge`: whether it used the judges."""
        if self.age is not None:
            self.age += 1
            if judge:
                self.age = 1
        self.count += judge

    def report(self, name: str, weights: Weights) -> EarnedWeights:
        """Return the weights of this step, and the scores after it."""
        scores = self.scores[name]
        score, _, error = scores.statistics.clone()
        return EarnedWeights(weights, score, error, scores.skipped.clone())

    def restore(self, names: Iterable[str]) -> None:
        """Forget all tasks but these, which had scores before a step that has failed."""
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
        """Read a saved state without changing this object, and return `age`, `count` and `scores`
        for `load`.

        None comes from a guide with fixed weights, which has no scores.
        """
        if state is None or not self.is_auto:
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


def _run_judges(
    auto: AutoWeights, judge: Losses, layout: Layout, flat: Tensor | None
) -> tuple[Tensor, Sequence[Tensor | None]] | None:
    """Run the judges' forward and backward pass. Returns their losses, and the gradient of the mean
    loss for each parameter of the layout (None where it has none).

    The gradients are also written into `flat` (D) if it is given.

    Returns None if this forward pass drew random numbers, although the first one did not: dropout
    may have been on. The next call switches dropout off.
    """
    # Other random numbers each time; & keeps 63 bits, as a seed must not be negative.
    seed = (auto.seed * 1_000_003 + 7 + auto.count) & (2**63 - 1)
    with isolated_forward(
        auto.model, auto.batch_norm, seed, draws=auto.draws is not False
    ) as isolated:
        advice = (
            "return the losses of at least two examples, or make the guide with batch_norm='frozen'"
        )
        losses = losses_of(judge, "judge", advice, auto.workers)
        if auto.draws is None:
            # The first pass decides. Two cases count as drawing, because a second pass is not
            # possible or slow: one worker cannot run again without the others, and code would be
            # compiled once more.
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
