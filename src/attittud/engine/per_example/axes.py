"""Where the examples are in a tensor of a model.

In the "first" or "second" dimension, or flattened into one dimension with what follows ("flattened") or with what comes
before ("interleaved").
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal, get_args

from torch import Tensor

Place = Literal["first", "second", "flattened", "interleaved"]

# Parameters in a function, or an argument of it, and the number of the call: another one may have its examples in another place.
Use = tuple[str, int]
# With the places that its shape allows. A later batch may allow others: as many positions as examples, another call.
Form = tuple[Use, int, bool, frozenset[Place]]


class Places:
    """Where calls and their arguments have their examples, if any, as a check has confirmed it."""

    def __init__(self) -> None:
        self._of_forms: dict[Form, Place | None] = {}
        self._usual: dict[tuple[Use, int], Place | None] = {}
        """Of the latest forms, by number of dimensions."""

    @property
    def confirmed(self) -> Set[Form]:
        return self._of_forms.keys()

    def confirm(self, places: dict[Form, Place | None]) -> None:
        self._of_forms |= places
        self._usual |= {form[:2]: place for form, place in places.items()}

    def known(self, use: Use, shape: tuple[int, ...], examples: int, guess: Place | None) -> Place | None:
        """As it was confirmed; in a new form as in the latest one where the shape allows it, else as guessed."""
        form = form_of(use, shape, examples)
        if form in self._of_forms:
            return self._of_forms[form]
        usual = self._usual.get(form[:2], guess)
        return usual if usual is None or fits(usual, shape, examples) else guess


def form_of(use: Use, shape: tuple[int, ...], examples: int) -> Form:
    allowed = frozenset(place for place in get_args(Place) if fits(place, shape, examples))
    # One example confirms nothing for several: every row of whatever it is given is its own.
    return use, len(shape), examples == 1, allowed


def place_of(shape: tuple[int, ...], examples: int, *, leading: bool = False) -> Place | None:
    """A guess from the shape; what is guessed wrong is found by the check of the first refresh.

    `leading`: of a function that knows examples in the first dimension only.
    """
    guesses: tuple[Place, ...] = ("first", "second", "flattened")
    if leading or len(shape) == 2:
        # As many features or channels as examples are more likely than examples in the last dimension.
        guesses = ("first", "flattened") if leading else ("first", "flattened", "second")
    return next((place for place in guesses if fits(place, shape, examples)), None)


def fits(place: Place, shape: tuple[int, ...], examples: int) -> bool:
    if place == "second":
        return len(shape) > 1 and shape[1] == examples
    if len(shape) == 0:
        return False
    return shape[0] == examples if place == "first" else shape[0] > 0 and shape[0] % examples == 0


def by_example(x: Tensor, place: Place, examples: int) -> Tensor:
    """m x r x the rest: r positions of the first dimension belong to each example."""
    if place == "second":
        return x.movedim(1, 0)
    if place == "interleaved":
        return x.reshape(-1, examples, *x.shape[1:]).movedim(1, 0)
    return x.reshape(examples, -1, *x.shape[1:])


def single(x: Tensor, place: Place, examples: int) -> Tensor:
    """m x what the model would see of one example alone, its dimension of examples kept."""
    rows = by_example(x, place, examples)
    return rows.unsqueeze(2) if place == "second" else rows
