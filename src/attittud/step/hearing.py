"""When the judges of eta="auto" are heard, and what is kept of it between steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attittud._checks import as_losses, check_callable
from attittud.autograd.graph import walk, written_into
from attittud.decompose import Weights
from attittud.eta import Eta
from attittud.report import TaskReport
from attittud.step.forward import BatchNormMode, enough_examples, untraced_forward
from attittud.step.judges import Record, Verdict
from attittud.step.step import Step
from attittud.step.task import Given, Losses
from attittud.workers.one import Workers


class Hearings:
    """Keeps the records of a guide's auxiliary tasks, and hears the judges in the steps that are due."""

    def __init__(
        self, model: nn.Module, workers: Workers, *, wanted: bool, every: int, seed: int, batch_norm: BatchNormMode
    ) -> None:
        self.model, self.workers = model, workers
        self.wanted, self.every = wanted, every
        self.seed, self.batch_norm = seed, batch_norm
        self.records: dict[str, Record] = {}
        self.age: int | None = None
        """Steps since the judges were heard; None: never."""
        self.count = 0

    @property
    def due(self) -> bool:
        return self.wanted and (self.age is None or self.age >= self.every)

    def count_replay(self, *, judge: bool) -> None:
        """A step that a CUDA graph repeated on the device."""
        if self.age is not None:
            self.age = 1 if judge else self.age + 1
        self.count += judge

    def call(self, step: Step, judge: Losses | None) -> None:
        """Have the judges heard in this step, where that is due."""
        check_callable("judge", judge)
        if judge is not None and not self.wanted:
            raise ValueError("judge= is only used with eta='auto', but every eta of this guide is fixed; leave it out")
        if judge is not None and self.due:
            step.judge, step.norms = judge, True

    def check(self, step: Step, tasks: Mapping[str, Given]) -> None:
        """No part has a weight before the judges have been heard once."""
        judged = [name for name, task in tasks.items() if not isinstance(task.eta, Eta)]
        if judged and self.age is None and step.judge is None:
            raise ValueError(
                f"auxiliary loss {judged[0]!r} has eta='auto', which needs judges: pass judge= (in three verbs: call judge() "
                "before auxiliary()), a callable that "
                "returns the losses of primary examples that are kept out of training. Once they have been heard it may be "
                "left out, and the weights stay"
            )

    def hear(self, step: Step) -> None:
        """Find the judges' mean gradient over the shared parameters, of all workers' judges.

        The library controls the forward pass as it does for `basis_losses`: no dropout, no trace in BatchNorm or in the
        random state.
        """
        if step.judge is None or step.judges is not None:
            return
        layout = step.layout
        assert layout is not None
        seed = (self.seed * 1_000_003 + 7 + self.count) & (2**63 - 1)
        alone, flat = self.workers.size == 1, layout.empty()
        with untraced_forward(self.model, self.batch_norm, seed), torch.enable_grad():
            more = "return the losses of at least two, or make the guide with batch_norm='frozen'"
            with enough_examples("judge", more):
                given = step.judge()
            losses = as_losses(self.workers.losses(given, "judge"), "judge", may_be_empty=not alone)
            if alone and not walk(losses).leaves & layout.ids:
                raise ValueError(
                    "judge: the losses reach none of the shared parameters; compute them from the model given to Guide"
                )
            mean = self.workers.shares([losses])[0].mean(losses)
            # Straight into place: a gradient is not held twice.
            with written_into(layout, flat) if alone else nullcontext():
                found = self.workers.gradients(mean, layout.named, retain_graph=False)
        if not alone:
            layout.add_(flat, layout.pick(found), fresh=True)
        if self.workers.splits_examples:
            self.workers.sum_examples_(flat, "judges' gradients")
        self.count += 1
        step.judges = flat

    def weights(self, name: str, device: torch.device) -> Weights:
        """What a task has earned in the steps before this one. A copy: reports are read later."""
        if name not in self.records:
            self.records[name] = Record(device)
        return Weights(*self.records[name].weights.clone().unbind())

    def close(self, step: Step, cosines: Mapping[str, Tensor]) -> None:
        """The step is over; take in what the judges said in it."""
        for name, found in cosines.items():
            self.records[name].add(found)
        if step.judges is not None:
            self.age = 0
        if self.age is not None:
            self.age += 1

    def reports(self, step: Step, reports: dict[str, TaskReport]) -> dict[str, TaskReport]:
        """With the weights of this step and the scores as they are after it."""
        found = dict(reports)
        for name, task in step.tasks.items():
            if isinstance(task.eta, Weights):
                record = self.records[name]
                verdict = Verdict(task.eta, record.score, record.error, record.skipped.clone())
                found[name] = replace(reports[name], verdict=verdict)
        return found

    def state(self) -> dict[str, Any]:
        records = {name: record.state() for name, record in self.records.items()}
        return {"age": self.age, "count": self.count, "records": records}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """`None`: the state is of a guide with fixed weights, so nothing has been earned yet."""
        self.age, self.count, self.records = None, 0, {}
        if state is not None and self.wanted:
            self.age, self.count = state["age"], state["count"]
            device = next(self.model.parameters()).device
            for name, saved in state["records"].items():
                self.records[name] = Record(device)
                self.records[name].load(saved)
