"""What a guide knows of its model between steps: the parameters, those that both losses reach, the
basis and its age.

The last stage of a step is here too: `Shared.write` adds the update to `.grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import attrgetter, is_, is_not, itemgetter
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from attittud._torch import (
    AccumulateGrad,
    DisableTorchFunction,
    foreach_add_,
    foreach_mul,
    next_sequence_number,
    sequence_number,
)
from attittud.autograd.layout import Layout, Named, as_gradient, local, walk
from attittud.basis.subspace import Subspace
from attittud.workers.one import Workers

Predicate = Callable[[str, nn.Parameter], bool]
_DTYPE = attrgetter("dtype")
_FIRST = itemgetter(0)
_SECOND = itemgetter(1)
_LEAVES = (NoneType, AccumulateGrad)  # the ends of a graph, which have no number of their own
NEAR = 24
"""How many nodes of a graph, from the loss on, tell it from other graphs."""
MOST_REMEMBERED = 64
"""How many graphs, or sets of parameters with a gradient, are remembered before all are forgotten:
if layers are skipped at random, almost every step has new ones.
"""


@dataclass
class KnownGraph:
    """Properties of a loss's graph that mostly stay the same from step to step."""

    reached: set[str]
    """Names of the parameters that the loss reaches."""
    retained: bool
    """Whether a later loss of the step shares a part of the graph, which may not be freed then."""
    converts: bool
    """Whether some parameters are converted to half precision, as under autocast."""

    def confirm(self, loss: Tensor, reached: set[str]) -> None:
        """Remember other parameters, `reached`, because these got a gradient in this step.

        The graph is walked again: this raises an error where autograd would silently leave out
        gradients, as under reentrant checkpointing.
        """
        walk(loss)
        self.reached = reached


class GraphMemory:
    """Remembers the graphs of a step's losses, because walking through a graph is slow.

    A graph is recognised by its nodes near the loss: how many nodes autograd had made in this
    thread before each of them, since the guide's last call. Two graphs that differ only elsewhere
    may be mistaken for each other. Then torch may refuse to go through a freed graph, and from then
    on all graphs are walked. No result is wrong: which parameters a loss reaches is taken from its
    gradients.
    """

    def __init__(self) -> None:
        self._remembered: dict[Any, dict[str, KnownGraph]] = {}
        """The graphs of the losses by name; the key is what `_fingerprint` returns."""
        self.trusted = True
        """Whether no graph has been mistaken for another one so far."""
        self.begin()

    def __reduce__(self) -> Any:
        return GraphMemory, ()  # a copy may be used in another thread, which counts its own nodes

    def begin(self) -> None:
        """Count the nodes of the next losses from here on."""
        self._earlier: int = next_sequence_number()

    def distrust(self) -> None:
        """Recall no graph from now on."""
        self.trusted = False

    def learn(
        self, losses: Mapping[str, Tensor], graphs: Sequence[KnownGraph]
    ) -> dict[str, KnownGraph]:
        """Remember the graphs of these losses, in their order, and return them by name."""
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.clear()
        by_name = dict(zip(losses, graphs, strict=True))
        self._remembered[self._fingerprint(losses)] = by_name
        return by_name

    def recall(self, losses: Mapping[str, Tensor]) -> dict[str, KnownGraph] | None:
        """Return what is remembered of graphs like these; None: they must be walked."""
        if not self.trusted:
            return None
        return self._remembered.get(self._fingerprint(losses))

    def _fingerprint(self, losses: Mapping[str, Tensor]) -> tuple[Any, ...]:
        """Return what tells the graphs of these losses from other graphs: the names of the losses,
        and for each loss numbers of the nodes near it.

        The number of a node is how many nodes autograd had made before it since `begin`; leaves,
        which have none, get 0.
        """
        numbers = list[tuple[int, ...]]()
        for loss in losses.values():
            # Breadth first from the loss, until there are enough nodes.
            nodes: list[Any] = [loss.grad_fn]
            for node in nodes:  # the list grows meanwhile
                if len(nodes) >= NEAR:
                    break
                if node is not None:
                    nodes.extend(map(_FIRST, node.next_functions))
            of_loss = [0] * min(NEAR, len(nodes))
            for at in range(len(of_loss)):
                if type(nodes[at]) not in _LEAVES:
                    of_loss[at] = sequence_number(nodes[at]) - self._earlier
            numbers.append(tuple(of_loss))
        return tuple(losses), *numbers


class Schedule:
    """The basis of a guide between steps, its age, and the number of refreshes so far.

    A step changes nothing here before its update is written. The only exception is `overwrite`:
    rows of V are written in place.
    """

    def __init__(self) -> None:
        self.subspace: Subspace | None = None
        self.age: int | None = None
        """How many steps have used the basis; None: there is no basis, or its rows are not
        complete.
        """
        self.count = 0
        """The number of refreshes so far."""
        # Both tensors move to the device when it is known.
        self.index = torch.zeros((), dtype=torch.int64)
        """The same number as a tensor. The random numbers of a basis depend on it, and a captured
        refresh must draw new numbers at every replay.
        """
        self.skipped = torch.zeros((), dtype=torch.int64)
        """How many of these refreshes found NaN or Inf and kept the old rows."""

    def due(self, every: int) -> bool:
        """Whether the next step has a refresh."""
        return self.age is None or self.age >= every

    def forget(self) -> None:
        """Drop the basis, because the model no longer has its parameters."""
        self.age = None
        self.subspace = None

    def move(self, device: torch.device) -> None:
        """Keep the counters on this device."""
        self.index = self.index.to(device)
        self.skipped = self.skipped.to(device)

    def overwrite(self) -> None:
        """Note that new rows are about to be written over the old ones. Until `close`, the next
        step has a refresh.
        """
        self.age = None

    def close(self, subspace: Subspace, *, refreshed: bool) -> None:
        """End a step that has used this basis. `refreshed`: the step has computed it."""
        if not refreshed:
            self.age = (self.age or 0) + 1
            return
        # Without an age, an interruption among these lines makes the next step refresh.
        self.age = None
        self.subspace = subspace
        self.skipped += ~subspace.finite
        self.index += 1
        self.count += 1
        self.age = 1

    def count_replay(self, *, refresh: bool) -> None:
        """Count a step that a CUDA graph has replayed. `refresh`: it had a refresh, which has
        counted itself in `index`.
        """
        if refresh:
            self.age = 1
            self.count += 1
        else:
            self.age = (self.age or 0) + 1

    def load(
        self, subspace: Subspace | None, age: int | None, refreshes: int, skipped: int
    ) -> None:
        """Continue from a saved state: the basis, its age, and the numbers of refreshes and of
        skipped refreshes. Without a basis the next step refreshes.
        """
        self.age = None
        self.subspace = subspace
        self.count = refreshes
        self.index = self.index.new_tensor(refreshes)
        self.skipped = self.skipped.new_tensor(skipped)
        if subspace is not None:
            self.age = age


class Shared:
    """Lists the parameters of a model, and remembers the names of those that the losses reach:
    parameters may be replaced, and a guide copied.
    """

    def __init__(
        self,
        model: nn.Module,
        workers: Workers,
        parameters: Iterable[nn.Parameter] | Predicate | None,
    ) -> None:
        self.model = model
        self.workers = workers
        self.named: Named = []
        """All parameters of the model. The lists stay the same objects until the model changes."""
        self._required: list[bool] | None = None
        self._list()
        self.allowed = allowed(self.named, parameters)
        """Names of the parameters that `parameters=` of the guide includes; None: all."""
        self._latest: Layout | None = None
        """The layout of the last refresh; the next one mostly has the same."""
        self._reached: dict[bytes, set[str]] = {}
        """Names of the parameters that have a gradient; the key has a byte for each trainable
        parameter.
        """
        self._reached_of: Any = None
        """The list of trainable parameters that `_reached` is about."""
        self._model_has: tuple[Layout | None, Any] = (None, None)
        """The last layout whose parameters the model was found to have, and the list `named` then.
        """
        self._split_positions: tuple[Any, Any, list[int], list[int]] = None, None, [], []
        """What `_positions` returned last, after the layout and the list of trainable parameters
        that it is about.
        """
        self._written: tuple[nn.Parameter, int, int] | None = None
        """The first shared parameter, the id of its `.grad` and the version of this `.grad` after
        the last update.
        """
        self.untouched = False
        """Whether this `.grad` is unchanged: not set to None or zero, and not clipped."""
        self.auxiliary: set[str] | None = None
        """Parameters that auxiliary losses are known to reach; None until a first step has seen all
        of these losses.
        """

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_written": None}  # a copy has other objects

    def update(self) -> None:
        """Notice changes of the model, and of `.grad` since the last update (`untouched`)."""
        if self._list():
            self._written = None  # its parameter may have left the model
        self.untouched = False
        if self._written is not None:
            parameter, identity, version = self._written
            gradient = parameter.grad
            # (A weak reference would be safer than an id, but then torch could not swap tensors
            # when it converts a model.)
            if gradient is not None and id(gradient) == identity:
                self.untouched = gradient._version == version

    def _list(self) -> bool:
        """List the parameters of the model again, and which of them require a gradient. Returns
        whether this has changed; if not, all lists stay the same objects.

        Refuses a model that was sharded after its guide had been made.
        """
        named = self.workers.named
        if named is None:
            named = list(self.model.named_parameters())
        if not _same(named, self.named):
            self.workers.check_whole(self.model)
            self._required = None
            self.named = named
        required = [parameter.requires_grad for _, parameter in self.named]
        if required == self._required:
            return False
        self.trainable = [pair for pair in self.named if pair[1].requires_grad]
        """Parameters that require a gradient. A tied parameter appears once, under its first
        name.
        """
        self.parameters = [parameter for _, parameter in self.trainable]
        self._required = required  # last, because an interruption may come before
        return True

    def holds(self, layout: Layout) -> bool:
        """Whether the model still has the parameters of a layout, on the same device, with the same
        precision and sizes.
        """
        if layout is not self._model_has[0] or self.named is not self._model_has[1]:
            ids = {id(parameter) for _, parameter in self.named}
            if not ids.issuperset(map(id, layout.parameters)):
                return False
            self._model_has = layout, self.named
        # Arithmetic is in float64 if some parameter is, else in float32.
        wide = torch.float64 in map(_DTYPE, layout.parameters)
        same_precision = wide == (layout.dtype == torch.float64)
        same_device = layout.parameters[0].device == layout.device
        same_sizes = list(map(Tensor.numel, layout.parameters)) == layout.numels
        return same_precision and same_device and same_sizes

    def reached(self, gradients: Sequence[Tensor | None]) -> set[str]:
        """Return the names of the trainable parameters that have a gradient. `gradients`: one for
        each trainable parameter, or None.
        """
        trainable = self.trainable
        many = len(self._reached) > MOST_REMEMBERED
        if many or self._reached_of is not trainable:
            self._reached = {}
            self._reached_of = trainable
        # A byte for each gradient: 0 for None, else 1. The names are looked up by these bytes,
        # because a loop over parameters would be slow.
        pattern = bytes(map(is_not, gradients, repeat(None)))
        names = self._reached.get(pattern)
        if names is None:
            names = set(compress(map(_FIRST, trainable), pattern))
            self._reached[pattern] = names
        return names

    def begin(
        self, primary: set[str], auxiliary: set[str] | None, tasks: Collection[str] | None
    ) -> tuple[Layout, set[str] | None]:
        """Begin a refresh: choose the parameters that are decomposed, with the other workers.

        Args:
            primary: names of the parameters that the primary losses reach.
            auxiliary: names of the parameters that the auxiliary losses reach, of this step if all
                of them are known, otherwise of earlier steps. None: there was no earlier step.
            tasks: names of the auxiliary losses of this step; None: not all of them are known yet.

        Returns:
            The parameters that both losses reach and that `parameters=` of the guide includes. Next
            to them, the names of the parameters that auxiliary losses reach, on any worker; None if
            no auxiliary loss has been seen yet. Then all parameters that the primary losses reach
            take part.
        """
        shared, by_auxiliary = self.workers.agree(
            self.trainable, primary, auxiliary or set(), reset=True, tasks=tasks
        )
        if auxiliary is not None:
            auxiliary = by_auxiliary
            shared = shared & by_auxiliary
        if self.allowed is not None:
            shared = shared & self.allowed
        pairs = [pair for pair in self.trainable if pair[0] in shared]
        # An engine may be watching the calls of torch: it would be told of every look at a parameter.
        with DisableTorchFunction():
            if self._latest is None or not self._latest.describes(pairs):
                self._latest = Layout(pairs)
        return _not_empty(self._latest), auxiliary

    def narrowed(self, layout: Layout, primary: set[str], auxiliary: set[str]) -> Layout:
        """Return the parameters of a layout that the auxiliary losses, of any worker, reach too.
        `primary` and `auxiliary` are the names that this worker's losses reach.
        """
        _, reached = self.workers.agree(self.trainable, primary, auxiliary)
        return _not_empty(
            Layout((name, parameter) for name, parameter in layout.named if name in reached)
        )

    def settle(
        self, primary: set[str], auxiliary: set[str], tasks: Collection[str]
    ) -> tuple[set[str], set[str]]:
        """Return the names of the parameters that the primary losses of any worker reach, and
        likewise for the auxiliary losses, once all losses of the step are known.
        """
        if self.workers.size == 1:
            return primary, auxiliary
        return self.workers.agree(self.trainable, primary, auxiliary, tasks=tasks)

    def remember(self, auxiliary: set[str] | None) -> None:
        """Remember the parameters that auxiliary losses reach."""
        self.auxiliary = auxiliary

    def split(
        self, layout: Layout, gradients: Sequence[Tensor | None]
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        """Split the gradients of the trainable parameters, given in their order.

        Returns a list for the parameters of the layout, in its order (None where there is no
        gradient), and the gradients of all other parameters by name.
        """
        inside, outside = self._positions(layout)
        rest = {}
        for i in outside:
            gradient = gradients[i]
            if gradient is not None:
                rest[self.trainable[i][0]] = gradient
        return [gradients[i] if i >= 0 else None for i in inside], rest

    def _positions(self, layout: Layout) -> tuple[list[int], list[int]]:
        """Return the positions of the layout's parameters in the list of trainable parameters (-1:
        no longer trainable), and the positions of all others there.
        """
        trainable = self.trainable
        if self._split_positions[0] is not layout or self._split_positions[1] is not trainable:
            at = {id(parameter): i for i, parameter in enumerate(self.parameters)}
            inside = [at.pop(id(parameter), -1) for parameter in layout.parameters]
            outside = list(at.values())
            self._split_positions = layout, trainable, inside, outside
        return self._split_positions[2:]

    def write(
        self, layout: Layout, update: Tensor | list[Tensor], rest: Mapping[str, Tensor]
    ) -> None:
        """Add to `.grad` as `Tensor.backward` does; a missing `.grad` becomes a view of the update.
        Then call the hooks of users for complete gradients.

        If an error or Ctrl-C comes while `.grad` is written, either every `.grad` is written or
        none is.

        Args:
            layout: the shared parameters.
            update: the update over the shared parameters, as a vector (D) or as its parts.
            rest: updates of other trainable parameters, by name.
        """
        inside, outside = self._positions(layout)
        parameters = layout.parameters
        others = [
            (p, rest[name]) for name, p in map(self.trainable.__getitem__, outside) if name in rest
        ]
        # Shared parameters that are frozen now (-1) keep an older `.grad`.
        shared = [p for p, i in zip(parameters, inside, strict=True) if i >= 0]
        written = shared + [p for p, _ in others]
        before = [p.grad for p in written]
        versions = [grad._version for grad in before if grad is not None]
        try:
            self._add(layout, update, inside, others)
        except BaseException:
            # An older `.grad` has a new version once the update was added to it. All of them are
            # added to at once, at the end. If that was not reached, every `.grad` is put back.
            if versions == [grad._version for grad in before if grad is not None]:
                for p, grad in zip(written, before, strict=True):
                    p.grad = grad
            raise
        self._written = None
        if shared and shared[0].grad is not None:
            self._written = shared[0], id(shared[0].grad), shared[0].grad._version
        hooked = [p for p in self.parameters if p._post_accumulate_grad_hooks]
        if hooked:
            ids = set(map(id, written))
            _run_hooks([p for p in hooked if id(p) in ids])

    def _add(
        self,
        layout: Layout,
        update: Tensor | list[Tensor],
        inside: list[int],
        others: list[tuple[nn.Parameter, Tensor]],
    ) -> None:
        """Add the update over the shared parameters, and the gradients of `others`, to `.grad`.

        `inside`: as from `_positions`; parameters with -1 are left out.
        """
        sharded = self.workers.splits_columns
        parameters = layout.parameters
        tensors: list[Any] = parameters
        if sharded:
            tensors = list(map(local, parameters))
        alike = len(set(map(_DTYPE, parameters))) == 1
        strides = list(map(Tensor.stride, tensors))
        no_gradient = set(map(type, map(attrgetter("grad"), parameters))) == {NoneType}
        if isinstance(update, Tensor):
            if alike:
                update = update.to(parameters[0].dtype)
            update = layout.views(update)
        old = list[Tensor]()
        new = list[Tensor]()
        # (model.half() may have been called since the layout was made.)
        same_type = alike and update[0].dtype == parameters[0].dtype
        none_frozen = -1 not in inside
        same_strides = strides == layout.strides
        if no_gradient and same_strides and same_type and none_frozen and not sharded:
            # The usual case: every view becomes `.grad` as it is.
            for p, view in zip(parameters, update, strict=True):
                p.grad = view
        else:
            for p, view, part_strides, laid_out, i in zip(
                parameters, update, strides, layout.strides, inside, strict=True
            ):
                if i >= 0:
                    fits = part_strides == laid_out and not sharded
                    _give(p, view, old, new, fits=fits)
        if not sharded:
            others = _copied(others)
        for p, value in others:
            _give(p, value, old, new, fits=False)
        if sharded:
            old = list(map(local, old))
        if old:
            foreach_add_(old, new)


def _same(named: Named, others: Named) -> bool:
    """Whether two lists have the same parameters under the same names."""
    if list(map(_FIRST, named)) != list(map(_FIRST, others)):
        return False
    return all(map(is_, map(_SECOND, named), map(_SECOND, others)))


def _run_hooks(hooked: list[nn.Parameter]) -> None:
    """Call the hooks that users have registered for complete gradients: an optimizer may step
    during the backward pass.
    """
    for p in hooked:
        if p.grad is not None:  # the hook of another parameter may have removed it
            for hook in p._post_accumulate_grad_hooks.values():
                hook(p)


def _copied(pairs: list[tuple[nn.Parameter, Tensor]]) -> list[tuple[nn.Parameter, Tensor]]:
    """Give parameters, which have no `.grad`, copies of their gradients, all in one call.

    Returns the pairs that are left: none, or all of them and nothing is changed, if some parameter
    has a `.grad` or some gradient differs from its parameter in type or strides.
    """
    for p, value in pairs:
        alike = type(value) is Tensor and value.layout == torch.strided and value.dtype == p.dtype
        if (
            p.grad is not None
            or not alike
            or not value.is_floating_point()
            or value.stride() != p.stride()
        ):
            return pairs
    if not pairs:
        return pairs
    copies = foreach_mul([value for _, value in pairs], 1.0)
    for (p, _), value in zip(pairs, copies, strict=True):
        p.grad = value
    return []


def _give(
    parameter: nn.Parameter, value: Tensor, old: list[Tensor], new: list[Tensor], *, fits: bool
) -> None:
    """Make a value the `.grad` of a parameter. If the parameter has a `.grad` already, append it to
    `old` and the value to `new`, which the caller adds in one call.

    `fits`: the value has the parameter's strides and becomes `.grad` itself. Otherwise it is
    copied, because optimizers write into `.grad`: autograd may return one tensor for two parameters
    or an expanded tensor, and a user may have changed the memory format.
    """
    if parameter.grad is not None:
        old.append(parameter.grad)
        new.append(value)
    elif value.layout != torch.strided:
        parameter.grad = value.clone()
    elif fits:
        parameter.grad = value.to(parameter.dtype)
    else:
        parameter.grad = as_gradient(torch.empty_like(local(parameter)).copy_(value), parameter)


def _not_empty(layout: Layout) -> Layout:
    """Return the layout; refuse a step in which no parameter is shared."""
    if not layout.parameters:
        raise ValueError(
            "the primary and the auxiliary losses share no trainable parameter of the model, so there is nothing to "
            "decompose; compute both from this model, and check parameters= and requires_grad"
        )
    return layout


def allowed(
    named: Sequence[tuple[str, nn.Parameter]],
    parameters: Iterable[nn.Parameter] | nn.Module | Predicate | None,
) -> set[str] | None:
    """Return the names of the parameters that `parameters=` of the guide includes; None: all.

    `parameters=` is a predicate of name and parameter, an iterable of parameters, or a module that
    has them.
    """
    if parameters is None:
        return None
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    if callable(parameters):
        chosen = {name for name, parameter in named if parameters(name, parameter)}
    else:
        names = {id(parameter): name for name, parameter in named}
        chosen = set()
        for position, parameter in enumerate(parameters):
            if not isinstance(parameter, Tensor):
                raise TypeError(
                    f"parameters= takes nn.Parameter objects or a predicate (name, parameter) -> bool, got "
                    f"{type(parameter).__name__} at position {position}; did you pass named_parameters()?"
                )
            if id(parameter) not in names:
                raise ValueError(
                    f"parameters=: the tensor at position {position} (shape {tuple(parameter.shape)}) is not a parameter "
                    "of the model; take them from the model given to Guide"
                )
            chosen.add(names[id(parameter)])
    if not chosen:
        raise ValueError(
            "parameters= leaves no parameter to decompose; include more parameters, or train without a Guide"
        )
    return chosen
