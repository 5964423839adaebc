"""The interface of all kinds of features: a `FeatureMap` turns examples into rows of numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from torch import Tensor, nn

from attittud_lab.output.progress import Progress

Matrix: TypeAlias = npt.NDArray[np.float32] | sparse.csr_matrix
"""One row of float32 numbers for each example: dense, or sparse where most numbers are 0."""
Plain = dict[str, Any]
"""What JSON can hold."""


class FeatureMap(ABC):
    """Turns examples into numbers, without their labels.

    A map is fitted on training rows (auxiliary rows may take part) and then only read. Frozen
    encoders learn nothing from the rows. `plain` and `tensors` hold everything that `restore`
    needs, so a restored map gives the same numbers. Neither holds code, and nothing is unpickled.
    """

    name: str
    reads: str
    """The kind of data: "text" (list of str), "image" (list of `Raw`) or "table" (rows x
    columns).
    """
    worth_keeping: ClassVar[bool] = False
    """Whether computing the numbers takes longer than reading them from the disk again."""

    def fit(self, inputs: Any) -> None:  # noqa: B027  # frozen encoders have nothing to learn
        """Learn from inputs without labels."""

    def to(self, device: str) -> None:  # noqa: B027  # only networks have a device
        """Compute on this device from now on. Maps without a network compute on the CPU."""

    @abstractmethod
    def transform(self, inputs: Any, progress: Progress | None = None) -> Matrix:
        """Return one row for each input; `progress` advances by the number of rows that are
        done.
        """

    @abstractmethod
    def plain(self) -> Plain:
        """Return everything but arrays, for a JSON file: settings, terms, and checksums of frozen
        weights.
        """

    def stored(self) -> Plain:
        """Return what a run folder keeps: `plain`, and where the files of an encoder lie. `restore`
        reads it. The same files in another place are the same features.
        """
        return self.plain()

    @property
    def bytes(self) -> int:
        """The size of the arrays and of a frozen network."""
        tensors = list(self.tensors().values())
        network = self.network
        if network is not None:
            tensors += network.state_dict().values()
        return sum(tensor.nbytes for tensor in tensors)

    @property
    def network(self) -> nn.Module | None:
        """The frozen network that computes the numbers, if there is one."""
        return None

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays of the map, for a safetensors file."""
        return {}

    @classmethod
    @abstractmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Return the map that `stored` and `tensors` describe; raises InputError if they describe
        none.
        """
