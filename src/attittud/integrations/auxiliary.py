"""The auxiliary datasets of a Trainer: prepared like its own dataset, repeated endlessly, and
resumed where a run stopped.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

from attittud.guide import SINGLE

Window = dict[str, tuple[list[Any], Any]]
"""For each dataset, by name: the batches of one step, and the number of items in them as the
Trainer counts items.
"""

JUDGES = "judge_dataset"
"""The name under which judges are drawn and saved."""


class AuxiliaryData:
    """Makes a data loader for every auxiliary dataset and draws batches from it.

    Args:
        trainer: the Trainer, after its own `__init__`.
        data: one auxiliary dataset, or a dict of named datasets.
        collators: collators of datasets by name; the other datasets use the Trainer's.
        batch_size: per device; None: the batch size of the Trainer.
        judges: the dataset of the judges, or None.
        others: further names of datasets that the user has passed, to be checked.
    """

    def __init__(
        self,
        trainer: Any,
        data: Any,
        collators: Mapping[str, Any],
        batch_size: int | None,
        judges: Any,
        others: Iterable[str],
    ) -> None:
        named = {SINGLE: data}
        if isinstance(data, Mapping):
            named = dict(data)
        for name in {*collators, *others}:
            if name not in named:
                raise ValueError(
                    f"there is no auxiliary dataset {name!r}, only {', '.join(map(repr, named))}"
                )
        if judges is not None:
            named[JUDGES] = judges
        self.trainer = trainer
        self.collators = dict(collators)
        self.batch_size = batch_size
        self.datasets = {name: self._prepared(name, dataset) for name, dataset in named.items()}
        """All datasets by name, prepared; the judges' under `JUDGES`."""
        self.streams: dict[str, Stream] = {}
        """The batches of each dataset, from `begin` on."""

    @property
    def drawn(self) -> dict[str, int]:
        """How many batches were drawn from each dataset. A checkpoint needs nothing else."""
        return {name: stream.drawn for name, stream in self.streams.items()}

    def begin(self, drawn: Mapping[str, int]) -> None:
        """Make the data loaders. Each continues after the batches that were `drawn` before, which
        are counted by the name of the dataset.
        """
        self.streams = {name: self._stream(name, drawn.get(name, 0)) for name in self.datasets}

    def draw(self, count: int, device: Any) -> Window:
        """Draw `count` batches from each dataset but the judges'."""
        window: Window = {}
        for name, stream in self.streams.items():
            if name != JUDGES:
                batches = [stream.draw() for _ in range(count)]
                items = self.trainer._get_num_items_in_batch(batches, device)
                window[name] = (batches, items)
        return window

    def _prepared(self, name: str, data: Any) -> Any:
        """Return an auxiliary dataset as TRL would prepare its own dataset, because TRL tokenizes
        inside its trainers. Under other trainers, or with a collator of its own, it stays as it is.
        """
        trainer = self.trainer
        prepare = getattr(trainer, "_prepare_dataset", None)
        options = getattr(trainer.args, "dataset_kwargs", None) or {}
        # Data that TRL leaves as they are: skipped on request, or images, which its collator
        # prepares.
        is_ready = options.get("skip_prepare_dataset") or getattr(
            trainer, "_is_vision_dataset", False
        )
        if prepare is None or is_ready or name in self.collators:
            return data
        arguments = {}
        if hasattr(trainer, "_formatting_func"):
            arguments = {"packing": False, "formatting_func": trainer._formatting_func}
        try:
            return prepare(
                data,
                processing_class=trainer.processing_class,
                args=trainer.args,
                dataset_name=name,
                **arguments,
            )
        except Exception as error:
            error.add_note(
                f"{trainer.argument_of(name)} is prepared like train_dataset: give it the same "
                "type and columns"
            )
            raise

    def _stream(self, name: str, drawn: int) -> Stream:
        """Make the endless batches of a dataset, after the `drawn` batches that were drawn before. If
        the dataset has a length, seed and name determine the order of its examples.
        """
        data = self.datasets[name]
        args = self.trainer.args
        seed = args.data_seed
        if seed is None:
            seed = args.seed
        size = self.batch_size
        if size is None:
            size = self.trainer._train_batch_size
        shuffled = None
        if hasattr(data, "__len__"):
            whole = 1  # the last batch of an epoch may be short
            if self.trainer.full_batches:
                whole = size * self.trainer.accelerator.num_processes
            shuffled = Shuffled(data, seed, name, whole)
        with self.using_collator(name):
            loader = self.trainer._get_dataloader(
                data,
                description=f"auxiliary {name!r}",
                batch_size=size,
                sampler_fn=lambda _: shuffled,
                is_training=True,
            )
        return Stream(loader, self.trainer.argument_of(name), shuffled, drawn)

    @contextmanager
    def using_collator(self, name: str) -> Iterator[None]:
        """Let the Trainer use the collator of dataset `name` inside the block: the dataset's own, if
        it has one, and with a check of its batches. A dataset with its own collator keeps all its
        columns, which the Trainer might drop.
        """
        trainer = self.trainer
        args = trainer.args
        previous_collator = trainer.data_collator
        removes_columns = args.remove_unused_columns
        if name in self.collators:
            trainer.data_collator = self.collators[name]
            args.remove_unused_columns = False
        trainer.data_collator = trainer.checked_collator(name, trainer.data_collator)
        try:
            yield
        except ValueError as error:  # of transformers, about columns
            error.add_note(f"the error is about {trainer.argument_of(name)}")
            raise
        finally:
            trainer.data_collator = previous_collator
            args.remove_unused_columns = removes_columns


class Shuffled(Sampler[int]):
    """A permutation that depends only on (seed, name, epoch), so it is the same on every worker and
    after a resume.

    The permutations of all epochs follow one another endlessly. A pass of the data loader takes as
    many of their entries as fill batches of `whole` examples, so a pass with short batches (`whole`
    = 1) is an epoch.
    """

    def __init__(self, data: Sized, seed: int, name: str, whole: int = 1) -> None:
        self.size = len(data)
        """Examples in an epoch."""
        self.whole = whole
        """Examples in a full batch of all workers; 1 if the last batch may be short."""
        # Without the name, two datasets of the same length would be drawn in the same order.
        self.seed = seed + zlib.crc32(name.encode())
        self.epoch = 0
        """The number of the next pass; `Stream` sets it."""

    def __len__(self) -> int:
        return math.ceil(self.size / self.whole) * self.whole

    def __iter__(self) -> Iterator[int]:
        """Yield the positions of the examples of one pass, which may begin and end within a
        permutation.
        """
        # Positions in all permutations, one after the other.
        position = self.epoch * len(self)
        end = position + len(self)
        while position < end:
            epoch, first = divmod(position, self.size)
            generator = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(self.size, generator=generator)
            part = order[first : first + end - position].tolist()
            yield from part
            position += len(part)


@dataclass
class Stream:
    """Draws from a data loader over and over."""

    loader: Any  # prepared for this worker
    label: str  # the dataset's name in messages
    shuffled: Shuffled | None  # the sampler of the loader, if the dataset has a length
    drawn: int = 0  # how many batches were drawn before; nothing else has to be saved

    def __post_init__(self) -> None:
        self._batches = self._endless()

    def draw(self) -> Any:
        """Draw the next batch. The global random state does not change, so dropout does not depend
        on resuming.
        """
        with torch.random.fork_rng(devices=[]):
            return next(self._batches)

    def _endless(self) -> Iterator[Any]:
        """Yield batches of one epoch after the other, after the first `drawn` batches, and count
        them in `drawn`. An epoch without a batch is an error.

        If the length is known, the batches before are skipped without loading them. Otherwise a
        resumed run must go through the data to find where it stopped.
        """
        from accelerate import skip_first_batches

        unread = self.drawn  # batches from the start of this epoch on that were drawn before
        epoch = 0
        if self.shuffled is not None:
            epoch, unread = divmod(self.drawn, max(1, len(self.loader)))
        while True:
            position = 0  # how many batches of this epoch are behind us
            loader = self.loader
            if self.shuffled is not None:
                self.shuffled.epoch = epoch
                if unread:
                    loader = skip_first_batches(loader, unread)
                    position = unread
            for batch in loader:
                position += 1
                if position > unread:
                    self.drawn += 1
                    yield batch
            if position == 0:
                raise ValueError(
                    f"{self.label} yields no batch; it is empty, or drop_last drops its only batch"
                )
            epoch += 1
            unread = max(0, unread - position)
