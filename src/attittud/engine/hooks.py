"""One forward and one backward pass: per-example gradients are formed call by call, contracted at once and freed.

This works for models in which examples do not influence each other. The gradients are compared with an ordinary gradient
at the first refresh, and again if new shapes are ambiguous; the error names a parameter that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from attittud._torch import BatchNorm, DisableTorchFunction, in_this_thread, run_backward, sequence_number
from attittud.autograd.layout import Layout
from attittud.engine.base import Checked, Jacobian, UnsupportedError, probe, verify
from attittud.engine.gradients import PerExampleGradient
from attittud.engine.loop import Loop
from attittud.engine.recorder import LEADING, BatchAxis, Call, Form, Gradients, KnownAxes, Recorder, form_of, guess_axis
from attittud.engine.rules import Bound, bind, generic

# How many elements of per-example gradients are formed at once on a GPU: a few MB keep it busy.
LEAST_BUDGET, MOST_BUDGET = 1 << 20, 1 << 27

Visit = Callable[[Tensor, PerExampleGradient], None]


class Hooks(Loop):
    name = "hooks"
    needs_forward = True

    def __init__(self) -> None:
        self.checked = Checked()
        self.axes = KnownAxes()
        self.known: KnownCalls | None = None
        self.record: Recorder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"known": None}  # found again by a refresh

    @property
    def instead(self) -> str:
        """The cure in the messages that refuse a model."""
        return "use engine='batched' or engine='loop', or engine='auto', which chooses one of them"

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        for name, module in model.named_modules():
            if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
                raise UnsupportedError(
                    f"module {name!r} ({type(module).__name__}) normalises by statistics of the batch, so that examples have "
                    "no gradients of their own; pass basis_losses= with batch_norm='frozen', put it into eval(), or "
                    f"{self.instead}"
                )
        self.record = record = Recorder(model)
        try:
            record.begin()
            yield
        finally:
            record.close()
            self.record = None

    def seen(self) -> None:
        if self.record is not None:
            self.record.finish()

    def used(self) -> None:
        if self.record is not None:
            self.record.release()

    def jacobian(self, losses: Tensor, layout: Layout) -> Jacobian:
        if losses.shape[0] == 0:  # a worker without examples
            return super().jacobian(losses, layout)
        if self.record is None:
            raise UnsupportedError(
                f"engine {self.name!r} must see the forward pass: give primary= as a callable that returns the per-example "
                f"losses, or basis_losses=; or {self.instead}"
            )
        self.seen()
        jacobian = HookedJacobian(self, self.record, losses, layout)
        if self.checked.due(layout) or not self.axes.confirmed.keys() >= jacobian.located.forms.keys():
            try:
                self._verify(jacobian)
            except UnsupportedError:
                if not self.axes.confirmed:
                    raise
                # Shared tensors may now differ between examples, or a call may be missing: check as in a first refresh.
                self.axes, self.known = KnownAxes(), None
                self._verify(jacobian := HookedJacobian(self, self.record, losses, layout))
        self.known = jacobian.known()
        return jacobian

    def _verify(self, jacobian: HookedJacobian) -> None:
        weights = probe(jacobian.losses)
        silent = verify(jacobian, weights, jacobian.left(weights), half=jacobian.half, cure=self.instead)
        self.axes.confirm(jacobian.located.forms)
        self.checked.add(jacobian.layout, silent)


def _budget(layout: Layout) -> int:
    """How many elements of per-example gradients may exist at once: as many as the model has parameters, twice on a GPU.

    With this limit, m examples need at most m more products than there are layers; on a GPU half as many.
    """
    if layout.device.type != "cuda":
        return layout.size
    return min(max(2 * layout.size, LEAST_BUDGET), MOST_BUDGET)


class Located(NamedTuple):
    """The axis of the examples in the tensors of each call; None: a tensor belongs to all examples."""

    forms: dict[Form, BatchAxis | None]
    axes: list[dict[int | None, BatchAxis | None]]  # by number of the call: in its result (None), its arguments


class Frontier(NamedTuple):
    """Outputs of calls behind which no other output lies: a backward pass that reaches them passes all calls."""

    outputs: list[int]  # their numbers among the outputs of all calls
    complete: bool  # the losses depend on all outputs of all calls


class KnownCalls(NamedTuple):
    """What a refresh has found out about its calls, for the next refresh whose calls are the same."""

    layout: Layout  # held, so that no other tensor gets the id of a parameter
    calls: list[Any]
    located: Located
    frontier: Frontier


class HookedJacobian(Jacobian):
    """J of a recorded forward pass. Each product with J takes one backward pass."""

    engine: Hooks

    def __init__(self, engine: Hooks, record: Recorder, losses: Tensor, layout: Layout) -> None:
        super().__init__(engine, losses, layout)
        self.record = record
        self.half = False  # whether a gradient came in half precision
        self._expected: Sequence[Tensor] = ()  # parameters whose own gradients the next pass computes too
        self._weight = 1.0  # of every loss in that pass
        self._names = {id(p): name for name, p in layout.named}
        self._asked: Set[int] = self._names.keys() | record.derived.keys() if record.derived else self._names.keys()
        """Parameters of the layout, and tensors that are computed from parameters alone."""
        self._calls = [call for call in record.calls if not self._asked.isdisjoint(map(id, call.met))]
        self._numbers = {id(call): number for number, call in enumerate(self._calls)}
        derived = (
            {id(t): t for call in self._calls for t in call.met if id(t) in record.derived} if record.derived else {}
        )
        self._derived = Derived(derived, layout)
        self.budget = _budget(layout)
        self._described = [(self.examples, *call.described(self._names)) for call in self._calls]
        known = engine.known
        self._same = known if known is not None and known.layout is layout and known.calls == self._described else None

    @cached_property
    def _edges(self) -> list[GradientEdge]:
        """The outputs of all calls."""
        return [edge for call in self._calls for edge in call.edges]

    @cached_property
    def _frontier(self) -> Frontier:
        return _frontier(self.losses, self._edges)

    def known(self) -> KnownCalls:
        """What the next refresh may find to be the same."""
        if self._same is not None:
            return self._same
        return KnownCalls(self.layout, self._described, self.located, self._frontier)

    def expect(self, parameters: Sequence[Tensor], weight: float) -> None:
        # Gradients of derived tensors need the graph once more. The passes for J run without autocast. In float16 another
        # weight would round small gradients differently, or make products with J overflow. (Calls of other parameters may lie
        # on the way to the layout's, so all calls count.)
        small = any(call.dtype == torch.float16 for call in self.record.calls)
        if not (self._derived.tensors or small or torch.is_autocast_enabled(self.layout.device.type)):
            self._expected, self._weight = parameters, weight

    def left(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        with self.record.active():
            if weights.shape[0] == 1:
                # An ordinary gradient of weighted losses.
                return super().left(weights, out)
            rows = self.layout.empty(weights.shape[0]).zero_() if out is None else out
            weights = weights.to(rows.dtype)
            if self._expected:
                weights = weights / self._weight  # by which the pass multiplies J
            targets = self.layout.columns(rows)
            through: dict[int, Tensor] = {}

            def visit(tensor: Tensor, per_example: PerExampleGradient) -> None:
                target = targets.get(id(tensor))
                if target is None:
                    shape = (weights.shape[0], *tensor.shape)
                    target = through.setdefault(id(tensor), torch.zeros(shape, dtype=rows.dtype, device=rows.device))
                per_example.left(target, weights, self.budget)

            self._sweep(visit)
            for key, several in through.items():
                for row, gradient in zip(rows, several, strict=True):
                    self.layout.add_(row, self._derived.pull(key, gradient), fresh=False)
            return rows

    def right(self, vectors: Tensor) -> Tensor:
        self._expected = ()  # whose weight only `left` takes back
        products = torch.zeros(self.examples, len(vectors), dtype=torch.float64, device=self.layout.device)
        by_vector = [self.layout.by_identity(vector) for vector in vectors]

        def visit(tensor: Tensor, per_example: PerExampleGradient) -> None:
            key = id(tensor)
            products.add_(per_example.right([columns[key] for columns in by_vector], self.budget))

        with self.record.active():
            for columns in by_vector:
                columns.update(self._derived.push(columns))
            self._sweep(visit)
        return products

    # ------------------------------------------------------------------------------------------------ one pass

    def _sweep(self, visit: Visit) -> None:
        missing = dict(self._numbers)

        def on_call(call: Call, gradients: Gradients) -> None:
            if not self.half:
                for gradient in gradients:
                    if gradient is not None and gradient.dtype.itemsize == 2:
                        self.half = True
            number = missing.pop(id(call), None)
            if number is not None:
                self._per_example(call, gradients, self.located.axes[number], visit)

        # Autocast is off, because it would round the operands of our own products.
        with self.record.telling(on_call), torch.autocast(self.layout.device.type, enabled=False):
            if self._expected:
                self._backward_to_parameters()
                return
            if self._same is not None and self._same.frontier.complete:
                self._backward(self._same.frontier)
            # After that, calls are missing only where the losses depend on the same calls in another way.
            if missing:
                self._backward(self._frontier)

    def _backward_to_parameters(self) -> None:
        """A pass that computes the gradients of the parameters too, so that it passes all calls. It frees the graph."""
        weights, parameters = torch.full_like(self.losses, self._weight), tuple(self._expected)
        self.gradients = run_backward((self.losses,), (weights,), False, False, parameters, True, accumulate_grad=False)

    def _backward(self, frontier: Frontier) -> None:
        """A pass that ends at the calls: the gradients of the parameters themselves are not computed."""
        if not frontier.outputs:
            return
        edges, ones = [self._edges[at] for at in frontier.outputs], torch.ones_like(self.losses)
        with in_this_thread():
            torch.autograd.grad(self.losses, edges, ones, retain_graph=True, allow_unused=True)

    def _per_example(
        self, call: Call, gradients: Gradients, axes: dict[int | None, BatchAxis | None], visit: Visit
    ) -> None:
        axis = axes[None]
        assert axis is not None
        try:
            # This comes before the recorder closes: checkpointing may run a part of the model again, which must be recorded.
            args, kwargs, data = call.arguments()
            with DisableTorchFunction():  # gradients are off in a backward pass
                found = bind(call, args, kwargs, data)
                if found is not None and len(gradients) == 1 and gradients[0] is not None:
                    rule, arguments = found
                    formed = rule(Bound(call, arguments, gradients[0], self.examples, axis))
                else:
                    given = {key: own for key, at in data.items() if (own := axes[at]) is not None}
                    formed = generic(call, args, kwargs, gradients, self.examples, given, axis)
                for tensor, per_example in formed:
                    if id(tensor) in self._asked:
                        visit(tensor, per_example)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError) as error:  # a rule raises this, or a rule has misread a shape
            raise self._cannot_tell(_described(call, self._names), str(error).split("\n")[0]) from error

    def _cannot_tell(self, what: str, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"engine {self.engine.name!r} cannot separate the gradients of single examples in {what}: {why}; "
            f"{self.engine.instead}"
        )

    # ------------------------------------------------------------------------------------------------ where examples are

    @cached_property
    def located(self) -> Located:
        if self._same is not None:
            return self._same.located
        count, known = Counter[str](), self.engine.axes
        forms, axes = dict[Form, BatchAxis | None](), []
        for call in self._calls:
            what = _described(call, self._names)
            own = dict[int | None, BatchAxis | None]()
            axes.append(own)
            for at in (None, *call.shapes):
                shape, use = call.shape_of(at), what if at is None else f"{what}, argument {at}"
                form = form_of(use, count[what], shape, self.examples)
                if at is None and call.in_attention:
                    own[at] = "second" if len(shape) > 2 else "interleaved"
                elif form in known.confirmed:
                    own[at] = known.confirmed[form]
                else:
                    guess = guess_axis(shape, self.examples, leading=call.func in LEADING)
                    if at is not None and at >= call.positional and guess != "first":
                        guess = None  # keyword arguments are mostly shared by all examples, unless their first dimension fits
                    own[at] = known.likely(form, guess)
                forms[form] = own[at]
            count[what] += 1
            if own[None] is None:
                raise self._cannot_tell(
                    what,
                    f"the result has shape {call.shape_of(None)}, in which no dimension belongs to the {self.examples} "
                    "examples (if it is a constant from outside of the model, register it as a buffer)",
                )
        return Located(forms, axes)


def _described(call: Call, names: dict[int, str]) -> str:
    met = [names.get(id(t), "a tensor computed from parameters") for t in call.met]
    return f"{', '.join(met)} in {call.name}"


class Derived:
    """Tensors computed from parameters alone that were then combined with data."""

    def __init__(self, tensors: dict[int, Tensor], layout: Layout) -> None:
        self.tensors, self.layout = tensors, layout

    def pull(self, key: int, gradient: Tensor) -> Sequence[Tensor | None]:
        """Turn the gradient of a tensor into gradients of its parameters."""
        tensor, parameters = self.tensors[key], self.layout.parameters
        weights = gradient.view(tensor.shape).to(tensor.dtype)
        return torch.autograd.grad(tensor, parameters, weights, retain_graph=True, allow_unused=True)

    def push(self, columns: dict[int, Tensor]) -> dict[int, Tensor]:
        """The derivative of the tensors along a vector over the parameters, which is given by parameter."""
        return {key: self._pushed(tensor, columns) for key, tensor in self.tensors.items()}

    def _pushed(self, tensor: Tensor, columns: dict[int, Tensor]) -> Tensor:
        parameters = self.layout.parameters
        with torch.enable_grad():
            dual = torch.ones_like(tensor, requires_grad=True)  # not zeros, as in Jacobian.right
            gradients = torch.autograd.grad(tensor, parameters, dual, create_graph=True, allow_unused=True)
            pairs = zip(parameters, gradients, strict=True)
            inner = [(gradient * columns[id(p)]).sum() for p, gradient in pairs if gradient is not None]
            if not inner:
                return torch.zeros_like(tensor, dtype=self.layout.dtype)
            return torch.autograd.grad(torch.stack(inner).sum(), dual)[0].to(self.layout.dtype)


def _frontier(loss: Tensor, edges: Sequence[GradientEdge]) -> Frontier:
    wanted = {edge.node for edge in edges}
    followers: dict[Any, list[Any]] = {loss.grad_fn: []}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        followers[node] = following = [n for n, _ in node.next_functions if n is not None]
        for later in following:
            if later not in followers:
                followers[later] = []
                stack.append(later)
    leads_on: set[Any] = set()
    # In one thread, a node is made after all nodes that it leads to, so a second round mostly finds nothing.
    inner = sorted([node for node, following in followers.items() if following], key=sequence_number)
    before = -1
    while len(leads_on) > before:
        before, rest = len(leads_on), list[Any]()
        for node in inner:
            following = followers[node]
            if wanted.isdisjoint(following) and leads_on.isdisjoint(following):
                rest.append(node)
            else:
                leads_on.add(node)
        inner = rest
    outputs = [at for at, edge in enumerate(edges) if edge.node in followers and edge.node not in leads_on]
    return Frontier(outputs, complete=wanted <= followers.keys())
