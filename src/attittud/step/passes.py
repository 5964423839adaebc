"""The backward passes of a step: from losses to gradients, with as few graphs and gradients held at once as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from attittud.autograd.graph import in_cuda_graphs, needed_later, owned, walk, written_into
from attittud.eta import Eta
from attittud.step.hearing import Hearings
from attittud.step.refresh import Refresher
from attittud.step.roles import Roles
from attittud.step.step import Step
from attittud.step.task import Ahead, Given, Losses
from attittud.workers.one import Share, Workers


class Passes:
    """What the verbs of a guide do with their losses: gradients go into the step, graphs are freed."""

    def __init__(
        self, model: nn.Module, workers: Workers, roles: Roles, refresher: Refresher, hearings: Hearings
    ) -> None:
        self.model, self.workers, self.roles = model, workers, roles
        self.refresher, self.hearings = refresher, hearings
        self.basis = refresher.basis

    def backward(
        self, step: Step, primary: Tensor | Losses | None, tasks: Mapping[str, Given], basis_losses: Losses | None
    ) -> None:
        """All losses of a step. That they are known together tells what is shared, and when a graph may go."""
        step.in_span = self.basis.keeps_graph and basis_losses is None and not _needs_primary(step, tasks)
        ahead = self._ahead(step, tasks)
        given = [task.loss for task in tasks.values()]
        pending = [walk(loss) for loss in given]
        # Tensors go to their backward passes, which reclaim the memory: then nothing else may hold it.
        held = [graph.saved_by_compiled() for graph in pending if callable(primary) and ahead is None]
        with self.refresher.computed(step, primary, basis_losses) as losses:
            shares = self.workers.shares([losses, *given])
            graph = walk(losses)
            retained = needed_later([graph, *pending])
            step.reached_auxiliary = set().union(*(each.leaves for each in pending))
            step.reach_complete = True
            self._primary(step, losses, shares[0], basis_losses, graph.leaves, retain_graph=retained[0])
        step.primary_complete = True
        held.clear()
        early = self._early(step, tasks, shares[1:], retained[1:])
        for (name, task), share, keep in zip(tasks.items(), shares[1:], retained[1:], strict=True):
            self._auxiliary(step, name, task, share, retain_graph=keep, ahead=ahead, found=early.get(name))

    def primary(
        self, step: Step, primary: Tensor | Losses | None, basis_losses: Losses | None, *, retain_graph: bool
    ) -> None:
        with self.refresher.computed(step, primary, basis_losses) as losses:
            graph = walk(losses) if step.refreshing and not step.fixed else None
            step.kept = graph if self.basis.keeps_graph and basis_losses is None else None
            share, leaves = self.workers.shares([losses])[0], set() if graph is None else graph.leaves
            self._primary(step, losses, share, basis_losses, leaves, retain_graph=retain_graph)

    def auxiliary(self, step: Step, tasks: Mapping[str, Given], *, retain_graph: bool) -> None:
        given = [task.loss for task in tasks.values()]
        shares = self.workers.shares(given)
        graphs = [walk(loss) for loss in given]
        step.reached_auxiliary |= set().union(*(graph.leaves for graph in graphs))
        later = graphs if step.kept is None else [*graphs, step.kept]
        retained = [retain_graph or needed for needed in needed_later(later)[: len(graphs)]]
        early = self._early(step, tasks, shares, retained)
        for (name, task), share, keep in zip(tasks.items(), shares, retained, strict=True):
            self._auxiliary(step, name, task, share, retain_graph=keep, found=early.get(name))

    def fix(self, step: Step) -> None:
        """From here on gradients meet the basis, and the judges where they are called."""
        if not step.fixed:
            self.refresher.fix(step)
        self.hearings.hear(step)
        assert self.refresher.subspace is not None
        step.release_waiting(self.refresher.subspace)

    def _primary(
        self,
        step: Step,
        losses: Tensor,
        share: Share,
        basis_losses: Losses | None,
        leaves: set[int],
        *,
        retain_graph: bool,
    ) -> None:
        pending = step.refreshing and not step.fixed
        if step.refreshing and step.basis_losses is None and step.primary_calls:
            if step.fixed:
                raise RuntimeError(
                    "primary() after auxiliary() in a step with a refresh: the basis is already fixed. Call primary() for "
                    "all micro-batches first, or pass basis_losses= at the first primary() call of the step, so that the "
                    "basis does not depend on them"
                )
            if basis_losses is not None:
                raise RuntimeError(
                    "basis_losses= came after an earlier primary() call of this step had contributed to the basis; pass it "
                    "at the first primary() call of the step"
                )
        if pending and step.refresh is None:
            self.refresher.start(step, leaves)
        if pending and basis_losses is not None and step.primary_calls == 0:
            step.basis_losses = basis_losses
        if pending and step.basis_losses is None:
            self.refresher.take_in(step, losses, share)
        kept = pending and self.basis.keeps_graph and step.basis_losses is None
        named = self.workers.trainable(self.model)
        if step.in_span:
            assert step.layout is not None
            named = [(name, parameter) for name, parameter in named if id(parameter) not in step.layout.ids]
        step.add_primary(self._gradients(losses, share, named, retain_graph=retain_graph or kept))
        if pending and self.basis.needs == "mean" and step.basis_losses is None:
            assert step.refresh is not None and step.primary is not None
            # The running sum itself: earlier calls are in it.
            step.refresh.rows = step.primary[None].clone()

    def _auxiliary(
        self,
        step: Step,
        name: str,
        task: Given,
        share: Share,
        *,
        retain_graph: bool,
        ahead: Ahead | None = None,
        found: dict[int, Tensor] | None = None,
    ) -> None:
        known = self.roles.auxiliary is not None
        if step.fixed or (step.primary_calls and known):
            self.fix(step)
        room: Tensor | None = None
        if ahead is not None and step.layout is not None:
            found, room = ahead.over(step.layout)
        elif found is None:
            subspace = self.refresher.subspace
            room = step.room_for(name, subspace) if step.fixed and subspace is not None else None
            with nullcontext() if room is None or step.layout is None else written_into(step.layout, room):
                named = self.workers.trainable(self.model)
                found = self._gradients(task.loss, share, named, retain_graph=retain_graph)
        if not step.fixed and step.primary_calls:
            step.reached_auxiliary |= found.keys()
            self.fix(step)
        eta = task.eta if isinstance(task.eta, Eta) else self.hearings.weights(name, task.loss.device)
        step.add_auxiliary(name, found, eta, task.weight, self.refresher.subspace if step.fixed else None, room)

    def _early(
        self, step: Step, tasks: Mapping[str, Given], shares: Sequence[Share], retained: Sequence[bool]
    ) -> dict[str, dict[int, Tensor]]:
        """Gradients of the tasks before a forward pass that is still to come, of judges or for the basis.

        Where these are CUDA graphs, that one may overwrite what the tasks' own forward passes saved.
        """
        judges = step.judge is not None and step.judges is None
        if not in_cuda_graphs() or not (judges or (step.basis_losses is not None and not step.fixed)):
            return {}
        named, early = self.workers.trainable(self.model), {}
        for (name, task), share, keep in zip(tasks.items(), shares, retained, strict=True):
            found = self._gradients(task.loss, share, named, retain_graph=keep)
            early[name] = {key: owned(gradient) for key, gradient in found.items()}
        return early

    def _ahead(self, step: Step, tasks: Mapping[str, Given]) -> Ahead | None:
        """The gradients of an only task while there is no primary graph, where that one would stay to the end of the step.

        So the two graphs, and a graph and two vectors, are never held at once.
        """
        subspace = self.refresher.subspace
        if not step.in_span or len(tasks) > 1 or subspace is None:
            return None
        (task,) = tasks.values()
        layout, share = subspace.layout, self.workers.shares([task.loss])[0]
        flat = layout.empty()
        with written_into(layout, flat):
            found = self._gradients(task.loss, share, self.workers.trainable(self.model), retain_graph=False)
        return Ahead(layout, flat, found)

    def _gradients(
        self, losses: Tensor, share: Share, named: Sequence[tuple[str, nn.Parameter]], *, retain_graph: bool
    ) -> dict[int, Tensor]:
        with torch.enable_grad():  # as Tensor.backward works under no_grad
            mean = share.mean(losses)
        return self.workers.gradients(mean, named, retain_graph=retain_graph)


def _needs_primary(step: Step, tasks: Mapping[str, Given]) -> bool:
    """Whether the primary gradient has to be a vector, although J of its examples is at hand for the whole step.

    For judges, and where nothing is re-weighted: that is to be right to the bit.
    """
    etas = [task.eta for task in tasks.values()]
    equal = all(isinstance(eta, Eta) and eta.neutral == eta.helpful == eta.harmful for eta in etas)
    return step.judge is not None or equal
