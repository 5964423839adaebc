"""What a basis is: a rule that turns products with J into orthonormal rows V."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from attittud.autograd.layout import EVERYTHING, Layout, Share
from attittud.basis.subspace import Stored, Subspace
from attittud.engine.base import Jacobian
from attittud.kernels import add_product_, factorise, gram, transform_
from attittud.workers.one import Workers


@dataclass
class Refresh:
    """A new basis under construction: the rows and counts collected so far from the primary calls
    of one step.
    """

    layout: Layout
    rank: int
    seed: int
    index: Tensor
    workers: Workers
    ahead: Ahead | None = None
    """Random numbers of the next refreshes, if the number of this refresh is known on the host."""
    rows: Tensor | None = None
    single: Tensor | None = None
    """Rows of J, one for each example, for a basis that contracts them later."""
    examples: int | Tensor = 0
    """Examples of all workers so far (on the device if there are several workers)."""
    earlier: int | Tensor = 0
    """Examples of all workers before the current primary call."""
    complete: bool = False
    """Whether no further primary call will contribute."""
    calls: int = 0
    share: Share = EVERYTHING
    """This worker's part of the examples of the current call."""
    shrink: float | Tensor = 1.0
    """A factor that J is multiplied by."""

    @property
    def first(self) -> int | Tensor:
        """The number of this worker's first example in the current call, counted over all workers
        and calls.
        """
        return self.earlier + self.share.first

    def receive(self, share: Share, count: int | Tensor, *, scaled: bool, complete: bool) -> None:
        """Count the examples of a primary call before they are added.

        `share`: this worker's part of them. `count`: the examples of all workers. `scaled`: the
        losses may carry a loss scale. `complete`: no further primary call will contribute.
        """
        if scaled and self.calls == 0:
            self.shrink = _shrink(count)
        self.share = share
        self.complete = complete
        self.earlier = self.examples
        self.examples = self.examples + count
        self.calls += 1

    def put(self, rows: Tensor) -> Tensor:
        """Keep these rows in place of all rows so far."""
        self.rows = rows
        self.single = None
        return rows

    def hold(self, rows: Tensor) -> None:
        """Keep rows of single examples as they are; they are appended to the rows of earlier
        calls.
        """
        if self.single is not None:
            rows = torch.cat([self.single, rows])
        self.single = rows

    def sum_examples_(self) -> Tensor:
        """Sum the rows over the workers, each of which has only the part of its own examples."""
        if self.rows is None:
            self.rows = self.layout.empty(self.rank).zero_()
        self.rows = self.workers.sum_examples_(self.rows, "the rows of the basis")
        return self.rows

    def gaussian(
        self, rows: int, first: int | Tensor, columns: int, *, dtype: torch.dtype
    ) -> Tensor:
        """Return some columns of the Gaussian matrix of this refresh, from column number `first`
        on: rows x columns. The caller may overwrite them.
        """
        device = self.layout.device
        if self.ahead is not None and isinstance(first, int) and rows * columns <= LARGEST_AHEAD:
            return self.ahead.normal(self.seed, rows, first, columns, device).to(dtype, copy=True)
        return gaussian(
            self.seed,
            self.index,
            rows=rows,
            first=first,
            columns=columns,
            dtype=dtype,
            device=device,
        )

    def narrow_(self, remaining: Layout) -> None:
        """Leave out the columns of parameters that turned out not to be shared."""
        if self.rows is not None:
            self.rows = self.layout.narrow_(self.rows, remaining)
        if self.single is not None:
            self.single = self.layout.narrow_(self.single, remaining)
        self.layout = remaining


def _shrink(examples: int | Tensor) -> float | Tensor:
    """A factor for J, so that products with J do not overflow before the mean gradient does. No
    basis depends on J's size.

    In float16 a loss scale grows until the mean gradient overflows. The mean has a factor 1/m,
    which single examples lack. (Three more powers of two allow for the largest entries of Π.) The
    losses of `basis_losses` need no loss scale and get no such factor, because it would round small
    float16 numbers to zero.
    """
    if isinstance(examples, Tensor):
        return torch.exp2(-torch.ceil(torch.log2(examples.clamp(min=1).float())) - 3)
    return 2.0 ** -(math.ceil(math.log2(max(1, examples))) + 3)


class Basis(ABC):
    """The subspace in which the two tasks are compared."""

    name: ClassVar[str]
    needs: ClassVar[Literal["jacobian", "mean", "nothing"]]
    """What the basis needs from the primary losses: products with J, their mean gradient, or
    nothing.
    """
    adds_up: ClassVar[bool] = True
    """Whether several primary calls of one step can contribute to one basis."""
    stored: ClassVar[bool] = True
    """Whether V is kept as a matrix."""
    one_product: ClassVar[bool] = False
    """Whether `add` calls `left` or `rows` of J once and nothing else, so that this pass may free
    the graph of the losses.
    """
    subspace: ClassVar[type[Subspace]] = Stored  # the subspace that gradients are projected onto

    def __init_subclass__(cls) -> None:
        """Take `one_product` from the class that has `add`: a second product in another `add` would
        find the graph freed.
        """
        super().__init_subclass__()
        if "one_product" not in cls.__dict__:
            adds = next(base for base in cls.__mro__ if "add" in base.__dict__)
            cls.one_product = adds.__dict__.get("one_product", False)

    def rank(self, asked: int) -> int:
        """How many rows V has if a user asks for rank `asked`."""
        return asked

    def working_rows(self, rank: int, examples: int) -> int:
        """How many rows of length D a refresh works on in addition to the stored V."""
        return rank

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:  # noqa: B027 - bases that need no Jacobian add nothing
        """Add the examples of one primary call; `refresh.put` keeps the rows collected so far."""

    @abstractmethod
    def finish(self, refresh: Refresh) -> Tensor:
        """Put orthonormal (or zero) rows into `refresh.rows`; returns whether they are finite (on
        the device).
        """


def orthonormal_rows(refresh: Refresh, *, most: int | Tensor | None = None) -> Tensor:
    """Orthonormalise the collected rows. `most`: the largest possible number of directions."""
    assert refresh.rows is not None
    return orthonormalise_(refresh.rows, refresh.workers.sum_columns, most=most).finite


class Sketch(Basis):
    """Gram-Schmidt, in row order, of ΠJ with Gaussian Π (k x m): the paper's Algorithm 2."""

    name = "sketch"
    needs = "jacobian"
    one_product = True

    def working_rows(self, rank: int, examples: int) -> int:
        return min(rank, examples)

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        """rows += Π_c J_c, with the columns Π_c (k x m) of this call's examples.

        While a quarter of k or fewer examples have come, J_c itself is kept, and multiplied later.
        """
        m = jacobian.examples
        count = refresh.rank  # rows of Π
        if isinstance(refresh.first, int):
            if refresh.complete:  # all examples together have no more directions than this
                count = min(count, refresh.first + m)
            elif refresh.first + m <= count // 4:
                # More examples may follow. As long as there are few, J itself is much smaller than
                # ΠJ.
                refresh.hold(jacobian.rows())
                return
        if refresh.single is not None:  # the examples of earlier calls
            earlier_weights = refresh.gaussian(
                count, 0, refresh.single.shape[0], dtype=refresh.single.dtype
            )
            rows = refresh.layout.empty(count).zero_()
            add_product_(rows, earlier_weights, refresh.single)
            refresh.put(rows)
        weights = refresh.gaussian(count, refresh.first, m, dtype=jacobian.losses.dtype)
        refresh.put(jacobian.left(weights, refresh.rows))

    def finish(self, refresh: Refresh) -> Tensor:
        if refresh.single is not None:  # fewer examples than rows: a square Π suffices
            count = refresh.single.shape[0]
            square = refresh.gaussian(count, 0, count, dtype=torch.float64)
            refresh.put(transform_(refresh.single, square))
        refresh.sum_examples_()
        # m examples have at most m directions, so later rows hold only rounding noise.
        return orthonormal_rows(refresh, most=refresh.examples)


class Orthonormalised(NamedTuple):
    """What orthonormalisation reports about its rows."""

    factor: Tensor
    """k x k float64: original = factor @ orthonormal; columns of zeroed rows are zero."""
    finite: Tensor  # whether the original held no NaN and no Inf (a boolean on the device)


def tolerance(dtype: torch.dtype) -> float:
    """Relative size below which a direction counts as rounding noise, as linearly dependent rows
    leave it.

    After a hundred operations in sequence, a gradient is off by at most 100 eps of its size. (The
    networks of the tests stay below a quarter of this.) The Gram matrix contains squares, so only
    eight digits of float64 remain.
    """
    return max(100 * float(torch.finfo(dtype).eps), 1e-7)


def orthonormalise_(
    rows: Tensor,
    sum_columns: Callable[[Tensor], Tensor] = lambda x: x,
    *,
    most: int | Tensor | None = None,
) -> Orthonormalised:
    """Gram-Schmidt of the rows (k x D) in order and in place; rows without a direction of their own
    become zero.

    Instead of a D x k QR decomposition, this uses two Cholesky decompositions of the Gram matrix.
    Each reads the rows twice and writes them once. The Gram matrix and the k x k factor are
    float64.

    If workers hold different columns, `sum_columns` sums the k x k Gram matrices of their parts.
    `most`: how many rows may keep a direction; later rows become zero. Returns the factor, and
    whether all numbers were finite; if not, the rows are useless.
    """
    # First pass: rows = factor @ (nearly orthonormal rows).
    products = sum_columns(gram(rows))
    finite = torch.isfinite(products).all()
    # Zeros need no special case below; the caller looks at `finite`.
    factor, inverse = factorise(torch.where(finite, products, 0.0), tolerance(rows.dtype))
    sizes = products.diagonal().sqrt()
    # The sum of the rows' rounding errors in each orthonormal row. A row that almost depends on
    # earlier rows has an inexact direction. So a later row that depends on these rows completely
    # keeps a remainder larger than its own rounding. An orthonormal row whose error may be larger
    # than the row itself is dropped.
    noise = tolerance(rows.dtype) * torch.linalg.vector_norm(inverse * sizes, dim=1)
    is_significant = ~(noise > 1)  # NaN counts as significant: `finite` tells of it
    if isinstance(most, Tensor) or (most is not None and most < rows.shape[0]):
        is_significant &= torch.arange(rows.shape[0], device=rows.device) < most
    factor = torch.where(is_significant, factor, 0.0)
    inverse = torch.where(is_significant[:, None], inverse, 0.0)
    transform_(rows, inverse, lower=True)
    # Second pass: removes what rounding left of the earlier directions. The rows now have norm 1 or
    # 0, so a tolerance of one half tells these apart.
    products = sum_columns(gram(rows))
    correction, inverse = factorise(torch.where(finite, products, 0.0), 0.5)
    transform_(rows, inverse, lower=True)
    return Orthonormalised(factor @ correction, finite)


# ----------------------------------------------------------------------------------- random numbers

# Gaussian numbers that depend only on (seed, refresh index, row, column). So every worker and
# micro-batch can take its own columns of one global matrix, and a resumed run gets the same
# columns. The counter-based generator (splitmix64 and Box-Muller in tensor operations) neither
# reads nor changes the user's random state and runs on any device. It also works inside a CUDA
# graph, where the refresh index is a tensor on the device.

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's is arithmetic for signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix64(x: Tensor) -> Tensor:
    """A bijection of 64-bit numbers whose outputs look random (Steele et al. 2014)."""
    x = x + _GAMMA
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return x ^ _shift_right(x, 31)


def _mixed(number: int) -> int:
    """`_splitmix64` of a Python number, without launching kernels."""
    x = (number + _GAMMA) % 2**64
    x = (x ^ (x >> 30)) * _MIX1 % 2**64
    x = (x ^ (x >> 27)) * _MIX2 % 2**64
    x ^= x >> 31
    if x >= 2**63:  # as a signed number
        x -= 2**64
    return x


def _uniform(bits: Tensor) -> Tensor:
    """Uniform numbers in (0, 1]: never 0, whose logarithm is infinite."""
    return (_shift_right(bits, 11) + 1).double() * 2.0**-53


def gaussian(
    seed: int,
    refresh_index: int | Tensor,
    *,
    rows: int,
    first: int | Tensor = 0,
    columns: int,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return some columns of the Gaussian matrix of one refresh, from column number `first` on:
    `rows` x `columns`.
    """
    index = torch.as_tensor(refresh_index, dtype=torch.int64, device=device)
    return _normal(*_uniform_pairs(seed, index, rows, first, columns)).to(dtype)


def _uniform_pairs(
    seed: int, index: Tensor, rows: int, first: int | Tensor, columns: int
) -> Tensor:
    """Two uniform numbers for each entry of the matrices of some refreshes: 2 x ... x rows x
    columns.

    `index` has the numbers of the refreshes: a scalar, or R x 1 x 1. An entry's numbers are a hash
    of (seed, refresh, row, column).
    """
    key = _splitmix64(index ^ _mixed(seed))
    row = torch.arange(rows, dtype=torch.int64, device=index.device)[:, None]
    column = torch.arange(columns, dtype=torch.int64, device=index.device)[None, :] + first
    counter = _splitmix64(_splitmix64(key ^ row) ^ column)
    return _uniform(_splitmix64(torch.stack([counter, counter ^ _GAMMA])))


def _normal(first: Tensor, second: Tensor) -> Tensor:
    """Normal numbers from pairs of uniform ones: √(-2 log u) cos(2π v)."""
    return (-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()


AHEAD = 16
"""How many refreshes get their random numbers together. Launching eighty small operations each time
would be slow.
"""
LARGEST_AHEAD = 1 << 13
"""The largest matrix whose numbers are made ahead, in entries: 2 MB for all refreshes, or 1 MB on a
GPU.
"""


class Ahead:
    """Random numbers of the next refreshes; they do not depend on when they are made."""

    def __init__(self) -> None:
        self._number = 0  # of the current refresh
        self._captured = False  # whether a refresh became part of a CUDA graph
        self._made: dict[tuple[Any, ...], tuple[int, Tensor]] = {}
        """By shape and place of a matrix: the first of its refreshes, and the numbers of all."""

    def begin(self, number: int, device: torch.device) -> Ahead | None:
        """Begin refresh `number`, and return self for use in it.

        Returns None once a refresh was captured: only the device counts its replays, so the number
        of a later refresh is not known here.
        """
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._captured = True
        self._number = number
        if self._captured:
            return None
        return self

    def normal(
        self, seed: int, rows: int, first: int, columns: int, device: torch.device
    ) -> Tensor:
        """Return columns of the Gaussian matrix of this refresh, from column number `first` on:
        rows x columns, float64.

        If they are not there, the numbers of this and the next refreshes are made and kept.
        """
        key = (seed, rows, first, columns, device)
        start, numbers = self._made.get(key, (0, None))
        if numbers is None or not 0 <= self._number - start < AHEAD:
            if len(self._made) > 8:  # batches of many sizes
                self._made.clear()
            start = self._number
            index = torch.arange(start, start + AHEAD, device=device)[:, None, None]
            numbers = _uniform_pairs(seed, index, rows, first, columns)
            if device.type != "cpu":
                numbers = _normal(*numbers)
            self._made[key] = (start, numbers)
        at = self._number - start
        if device.type != "cpu":
            return numbers[at]
        # On a CPU, the last digit of a logarithm or a cosine may depend on its position in a
        # tensor. So these are computed for one refresh at a time.
        return _normal(*numbers[:, at])
