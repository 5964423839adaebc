"""Which parameters which losses reach, as far as all steps so far and all workers know."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from attittud.autograd.layout import Layout, Predicate, allowed
from attittud.workers.one import Workers


class Roles:
    """Remembers by name: a parameter may be replaced, a guide copied."""

    def __init__(
        self,
        model: nn.Module,
        workers: Workers,
        parameters: Iterable[nn.Parameter] | Predicate | None,
        settings: Callable[[], str],
    ) -> None:
        self.model = model
        self.workers = workers
        self._allowed = allowed(workers.named(model), parameters)
        self._layout: Layout | None = None
        """The latest: mostly it is the next one too."""
        self._settings = settings
        """What must be the same on all workers, in words."""
        self.auxiliary: set[str] | None = None
        """Parameters that auxiliary losses are known to reach; None while no step has seen them all."""

    def auxiliary_ids(self) -> set[int]:
        known = self.auxiliary or set()
        return {id(parameter) for name, parameter in self.workers.named(self.model) if name in known}

    def names(self, identities: set[int]) -> set[str]:
        return {name for name, parameter in self.workers.named(self.model) if id(parameter) in identities}

    def agree(
        self, primary: set[int], auxiliary: set[int], *, anew: bool = False, final: bool = False
    ) -> tuple[set[int], set[int]]:
        """Parameters that the primary and the auxiliary losses of any worker reach; see `Workers.agree`."""
        trainable = self.workers.trainable(self.model)
        return self.workers.agree(trainable, primary, auxiliary, self._settings(), anew=anew, final=final)

    def shared(self, primary: set[int], auxiliary: set[int] | None) -> Layout:
        """What both losses reach and the user lets take part; None: it is not known yet what the auxiliary ones reach."""
        pairs = [
            (name, parameter)
            for name, parameter in self.workers.trainable(self.model)
            if id(parameter) in primary
            and (self._allowed is None or name in self._allowed)
            and (auxiliary is None or id(parameter) in auxiliary)
        ]
        if self._layout is None or not self._layout.describes(pairs):
            self._layout = Layout(pairs)
        return _not_empty(self._layout)

    @staticmethod
    def narrowed(layout: Layout, auxiliary: set[int]) -> Layout:
        """What of a layout the auxiliary losses reach as well."""
        return _not_empty(Layout((name, parameter) for name, parameter in layout.named if id(parameter) in auxiliary))


def _not_empty(layout: Layout) -> Layout:
    if not layout.parameters:
        raise ValueError(
            "the primary and the auxiliary losses share no trainable parameter of the model, so there is nothing to "
            "decompose; compute both from this model, and check parameters= and requires_grad"
        )
    return layout
