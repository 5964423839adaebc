"""A flat vector for gradients that lends its memory only for a step."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attittud.autograd.layout import Layout


class ReusedVector:
    """A vector whose views are made once, because making them takes longer than copying the
    gradients.

    Between steps it has no memory: its storage has size 0.
    """

    def __init__(self) -> None:
        self._layout: weakref.ref[Layout] | None = None
        self._flat: Tensor | None = None
        self._views: list[Tensor] = []

    def __reduce__(self) -> Any:
        return ReusedVector, ()

    def filled(self, layout: Layout, gradients: Sequence[Tensor | None]) -> Tensor:
        """Gradients (None counts as zero) as a vector, which has its memory until `release`."""
        if self._flat is None or self._layout is None or self._layout() is not layout:
            flat = layout.empty()
            # Together, so that an interruption leaves no views of another vector.
            self._layout, self._flat, self._views = weakref.ref(layout), flat, layout.views(flat)
        else:
            self._flat.untyped_storage().resize_(layout.size * layout.dtype.itemsize)
        layout.fill_(self._views, gradients)
        return self._flat

    def release(self) -> None:
        """Give the memory back. All tensors that refer to it become invalid."""
        if self._flat is not None:
            self._flat.untyped_storage().resize_(0)
