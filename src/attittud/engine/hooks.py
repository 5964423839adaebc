"""Products with J from one backward pass: per-example gradients are formed call by call and freed.

This works for models in which examples do not influence each other, and whose parameters are used
in functions that `rules.py` knows. Everything else is refused with an error that names the
parameter. The gradients are compared with an ordinary gradient at the first refresh, and again at
every new use of a parameter; the error names a parameter that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from attittud._torch import BatchNorm, DisableTorchFunction
from attittud.autograd.layout import Layout, run_backward
from attittud.engine.base import Jacobian, Loop, UnsupportedError, probe, verify
from attittud.engine.gradients import PerExampleGradient, Pulled
from attittud.engine.recorder import Call, Recorder, recording
from attittud.engine.rules import Use

# How many elements of per-example gradients are formed at once on a GPU: a few MB keep it busy.
LEAST_BUDGET = 1 << 20
MOST_BUDGET = 1 << 27
CURE = "use engine='loop', or engine='auto', which then uses it"

Visit = Callable[[Tensor, PerExampleGradient], None]


class Hooks(Loop):
    """One backward pass for all rows: at each recorded call, the gradient of its result gives the
    per-example gradients of its parameters.
    """

    name = "hooks"
    needs_forward = True

    def __init__(self) -> None:
        self.record: Recorder | None = None
        """The record of the latest forward pass, inside of `watch`."""
        self._confirmed: set[Form] = set()
        """How the parameters were used in the passes that have been compared."""
        self._compared: set[str] = set()
        """The parameters whose gradients have been compared with the ordinary ones."""
        self._silent: set[str] = set()
        """Parameters that are not compared yet, because their gradient was zero (behind a head that
        starts at zero) or not finite.
        """
        self._refreshes_with_silent = 0

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Record the forward pass inside the block. Refuses BatchNorm with statistics of the batch."""
        modules = dict(model.named_modules())
        for name, module in modules.items():
            if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
                raise UnsupportedError(
                    f"module {name!r} ({type(module).__name__}) normalises by statistics of the "
                    "batch, so that examples have no gradients of their own; pass basis_losses= "
                    f"with batch_norm='frozen', put it into eval(), or {CURE}"
                )
        with recording(modules.values()) as record:
            self.record = record
            try:
                yield
            finally:
                self.record = None

    def used(self) -> None:
        if self.record is not None:
            self.record.forget()

    def jacobian(self, losses: Tensor, layout: Layout) -> Jacobian:
        """Return J of the recorded losses.

        It is compared with an ordinary gradient in the first refresh, and again where parameters,
        or ways in which calls use them, are new.
        """
        if losses.shape[0] == 0:  # a worker without examples
            return super().jacobian(losses, layout)
        if self.record is None:
            raise UnsupportedError(
                f"engine {self.name!r} must see the forward pass: give primary= as a callable that "
                f"returns the per-example losses, or basis_losses=; or {CURE}"
            )
        self.record.end_forward()
        jacobian = HookedJacobian(self, self.record, losses, layout)
        has_new_forms = not jacobian.forms <= self._confirmed
        if self._is_new(layout) or has_new_forms:
            weights = probe(losses)
            silent = verify(
                jacobian, weights, jacobian.left(weights), half=jacobian.half, cure=CURE
            )
            # `silent` parameters had no usable gradient in this comparison.
            self._confirmed |= jacobian.forms
            self._compared |= layout.name_set - silent
            self._silent = (self._silent | silent) - self._compared
        return jacobian

    def _is_new(self, layout: Layout) -> bool:
        """Whether a layout has parameters to compare.

        Parameters that had no usable gradient are compared again in the 1st, 2nd, 4th, 8th, ...
        refresh that has some, which this method counts. They are not compared while a CUDA graph is
        captured, because it cannot wait for the device.
        """
        if not layout.name_set <= self._compared | self._silent:
            return True
        if self._silent.isdisjoint(layout.names):
            return False
        if layout.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        self._refreshes_with_silent += 1
        return self._refreshes_with_silent.bit_count() == 1  # a power of two


class Form(NamedTuple):
    """How a call uses its parameters. A new form is compared with the ordinary gradient."""

    described: str
    number: int  # among the calls of the pass that are described in the same way
    dimensions: int  # of its result
    one_entry_each: bool  # whether its result has one entry for each example, or several
    one_example: bool  # a batch of one example confirms nothing for larger batches


class HookedJacobian(Jacobian):
    """J of a recorded forward pass. Each product with J takes one backward pass."""

    engine: Hooks

    def __init__(self, engine: Hooks, record: Recorder, losses: Tensor, layout: Layout) -> None:
        """Find the recorded calls that the gradients need; refuses a call without a rule."""
        super().__init__(engine, losses, layout)
        self.record = record
        self.half = False  # whether a gradient came in half precision
        self.budget = _budget(layout)
        self._expected: Sequence[Tensor] = ()  # parameters whose gradients the next pass gives too
        self._weight = 1.0  # of every loss in that pass
        self._names = {id(parameter): name for name, parameter in layout.named}
        self._asked: dict[int, set[int]] = {}
        """By id of a call that the gradients need: the ids of its arguments that depend on the
        layout's parameters.
        """
        for call in record.calls:
            arguments = self._asked_of(call.combined)
            if arguments:
                self._asked[id(call)] = arguments
        for refusal in record.refusals:
            if self._asked_of(refusal.combined):
                described = self._described(refusal.combined, refusal.function)
                raise _refusal(described, "there is no rule for it")
        self.forms = self._forms()

    def _asked_of(self, combined: Sequence[Tensor]) -> set[int]:
        """Return the ids of the tensors that are computed from parameters of the layout."""
        return {id(tensor) for tensor in combined if self._parameters_of(tensor)}

    def _parameters_of(self, tensor: Tensor) -> list[Tensor]:
        """Return the parameters of the layout that a tensor is computed from."""
        sources = self.record.sources(tensor)
        return [parameter for parameter in sources if id(parameter) in self._names]

    def _forms(self) -> set[Form]:
        """Return the forms of the calls that the gradients need. Refuses a call whose result has
        neither one entry for each example nor several.
        """
        forms = set[Form]()
        calls_so_far = Counter[str]()
        one_example = self.examples == 1
        for call in self.record.calls:
            if id(call) not in self._asked:
                continue
            described = self._described(call.combined, call.name)
            entries = 0
            if len(call.shape) > call.dim:
                entries = call.shape[call.dim]
            one_entry_each = entries == self.examples
            is_multiple = entries > 0 and entries % self.examples == 0
            several_each = is_multiple and call.dim == 0
            if not one_entry_each and not several_each:
                raise _refusal(
                    described,
                    f"its result has shape {tuple(call.shape)}, whose first dimension does not "
                    f"belong to the {self.examples} examples",
                )
            number = calls_so_far[described]
            calls_so_far[described] += 1
            forms.add(Form(described, number, len(call.shape), one_entry_each, one_example))
        return forms

    def _described(self, combined: Sequence[Tensor], function: str) -> str:
        """Name the parameters of a call and its function, for messages."""
        names: dict[str, None] = {}
        for tensor in combined:
            for parameter in self._parameters_of(tensor):
                names[self._names[id(parameter)]] = None
        return f"{', '.join(names)} in {function}"

    # ------------------------------------------------------------------------------------- products

    def expect(self, parameters: Sequence[Tensor], weight: float) -> None:
        """As in `Jacobian`. Such gradients are not given where the pass for J could not serve both
        purposes.
        """
        # The pass for J runs without autocast, but a pass of the caller would run with it.
        if torch.is_autocast_enabled(self.layout.device.type):
            return
        for call in self.record.calls:
            # In float16 another weight would round small gradients differently, or make products
            # with J overflow. Calls of other parameters may lie on the way to the layout's, so all
            # calls count here.
            if call.dtype == torch.float16:
                return
            # Tensors that are computed from parameters need the graph once more, after the pass.
            if id(call) in self._asked:
                if not all(isinstance(tensor, nn.Parameter) for tensor in call.combined):
                    return
        self._expected = parameters
        self._weight = weight

    def left(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        """weights (r x m) times J, added to `out` (r x D) if it is given, by one pass for all rows."""
        if weights.shape[0] == 1:  # an ordinary gradient of weighted losses needs no rules
            return super().left(weights, out)
        if out is None:
            out = self.layout.empty(weights.shape[0]).zero_()
        weights = weights.to(out.dtype)
        if self._expected:
            weights = weights / self._weight  # because the pass starts with this weight
        targets = self.layout.columns(out)

        def visit(parameter: Tensor, per_example: PerExampleGradient) -> None:
            per_example.left(targets[id(parameter)], weights, self.budget)

        self._sweep(visit)
        return out

    def right(self, vectors: Tensor) -> Tensor:
        """J times the rows of `vectors` (l x D): m x l, in float64, by one pass for all of them."""
        self._expected = ()  # here every loss must have weight 1
        shape = (self.examples, len(vectors))
        device = self.layout.device
        products = torch.zeros(shape, dtype=torch.float64, device=device)
        by_vector = [self.layout.by_identity(vector) for vector in vectors]

        def visit(parameter: Tensor, per_example: PerExampleGradient) -> None:
            columns = [views[id(parameter)] for views in by_vector]
            products.add_(per_example.right(columns, self.budget))

        self._sweep(visit)
        return products

    # ------------------------------------------------------------------------------------- one pass

    def _sweep(self, visit: Visit) -> None:
        """Run a backward pass, and visit each parameter with its gradients in each call.

        A tensor that was computed from parameters waits until the pass is over. Then each of these
        parameters is visited, with gradients that are pulled back through that computation.
        """
        computed: list[tuple[Tensor, PerExampleGradient]] = []

        def on_call(call: Call, gradient: Tensor) -> None:
            self.half = self.half or gradient.dtype.itemsize == 2
            if id(call) in self._asked:
                self._form(call, gradient, visit, computed)

        # Autocast is off, because it would round the operands of our own products.
        with torch.autocast(self.layout.device.type, enabled=False):
            with self.record.telling(on_call):
                self._backward()
            with torch.no_grad():
                for tensor, per_example in computed:
                    for parameter in self._parameters_of(tensor):
                        visit(parameter, Pulled(per_example, tensor, parameter))

    def _form(
        self,
        call: Call,
        gradient: Tensor,
        visit: Visit,
        computed: list[tuple[Tensor, PerExampleGradient]],
    ) -> None:
        """Form the per-example gradients of a call, and visit its parameters with them.

        Gradients of tensors that were computed from parameters are added to `computed` instead.
        """
        try:
            arguments = call.arguments | call.data()
            use = Use(arguments, self._asked[id(call)], gradient, self.examples, call.dim)
            with DisableTorchFunction():
                for tensor, per_example in call.rule.gradients(use):
                    if id(tensor) in self._names:
                        visit(tensor, per_example)
                    else:
                        computed.append((tensor, per_example))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError) as error:  # a rule raises this, or misreads a shape
            described = self._described(call.combined, call.name)
            raise _refusal(described, str(error).split("\n")[0]) from error

    def _backward(self) -> None:
        """Run the pass, whose hooks call `_form`. It starts with weight 1 for each loss, or with
        the expected weight.
        """
        if self._expected:
            # A pass that computes the gradients of the parameters too. It frees the graph.
            weights = torch.full_like(self.losses, self._weight)
            parameters = tuple(self._expected)
            self.gradients = run_backward(
                (self.losses,), (weights,), False, False, parameters, True, accumulate_grad=False
            )
        elif self._frontier:
            # A pass that ends at the calls: the gradients of the parameters themselves are not
            # computed.
            losses = (self.losses,)
            ones = (torch.ones_like(self.losses),)
            ends = self._frontier
            run_backward(losses, ones, True, False, ends, True, accumulate_grad=False)

    @cached_property
    def _frontier(self) -> tuple[GradientEdge, ...]:
        """The results behind which no others lie: a pass that reaches them passes all calls."""
        edges = [call.edge for call in self.record.calls if id(call) in self._asked]
        leads_on = _leading_to({edge.node for edge in edges}, self.losses.grad_fn)
        return tuple([edge for edge in edges if leads_on.get(edge.node) is False])


def _refusal(described: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"engine {Hooks.name!r} cannot separate the gradients of single examples in {described}: "
        f"{why}; {CURE}"
    )


def _leading_to(nodes: set[Any], start: Any) -> dict[Any, bool]:
    """Return, for each node behind `start`, whether a path of at least one step leads to one of
    `nodes`.

    The search goes depth first with a stack of its own, since graphs are deeper than Python recurses.
    """
    leads_on: dict[Any, bool] = {}
    stack = [start]
    while stack:
        node = stack[-1]
        following = [later for later, _ in node.next_functions if later is not None]
        unknown = [later for later in following if later not in leads_on]
        if unknown:
            stack += unknown
            continue
        stack.pop()  # all following nodes are decided
        leads_on[node] = any(later in nodes or leads_on[later] for later in following)
    return leads_on


def _budget(layout: Layout) -> int:
    """How many elements of per-example gradients may exist at once.

    As many as the model has parameters; on a GPU twice as many. With this limit, m examples need at
    most m more products than there are layers; on a GPU half as many.
    """
    if layout.device.type != "cuda":
        return layout.size
    return min(max(2 * layout.size, LEAST_BUDGET), MOST_BUDGET)
