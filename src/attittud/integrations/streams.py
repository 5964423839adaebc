"""Auxiliary batches without end, in an order that a resumed run takes up where the killed one stopped."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler


class Shuffled(Sampler[int]):
    """A permutation that depends on (seed, name, epoch) only: the same on every worker and after a resume."""

    def __init__(self, data: Sized, seed: int, name: str) -> None:
        self.size = len(data)
        # Of its own for each name: two data sets of one length must not go through in step.
        self.seed = seed + zlib.crc32(name.encode())
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.size, generator=generator).tolist()


class Stream:
    """Draws from a data loader over and over. `drawn` is all that has to be saved.

    Args:
        loader: prepared for this worker.
        name: for messages.
        shuffled: its sampler, where it has one.
        skip: returns a loader that leaves out the first batches (Accelerate has one).
        drawn: how many batches were drawn before.
    """

    def __init__(
        self, loader: Any, name: str, shuffled: Shuffled | None, skip: Callable[[Any, int], Any], drawn: int = 0
    ) -> None:
        self.loader = loader
        self.name = name
        self.shuffled = shuffled
        self.skip = skip
        self.drawn = drawn
        self._batches = self._endless()

    def draw(self) -> Any:
        """The next batch. The global random state is left alone, so that dropout does not depend on resuming."""
        with torch.random.fork_rng(devices=[]):
            return next(self._batches)

    def _endless(self) -> Iterator[Any]:
        sized = self.shuffled is not None
        epoch, start = divmod(self.drawn, max(1, len(self.loader))) if sized else (0, self.drawn)
        while True:
            if self.shuffled is not None:
                self.shuffled.epoch = epoch
            found = start if sized else 0
            for batch in self.skip(self.loader, start) if sized and start else self.loader:
                found += 1
                if found > start:
                    self.drawn += 1
                    yield batch
            if found == 0:
                raise ValueError(
                    f"the auxiliary dataset {self.name!r} gives no batch; is it empty, or drop_last too strict?"
                )
            # Without a length it takes whole passes to find the place of a resumed run.
            epoch, start = epoch + 1, max(0, start - found)
