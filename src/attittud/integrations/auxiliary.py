"""The auxiliary datasets of a Trainer: prepared like its own dataset, repeated endlessly, and
resumed where a run stopped.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
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

    It takes the arguments of `AttittudMixin`; `known` are the names that the mixin's other
    arguments use.
    """

    def __init__(
        self,
        trainer: Any,
        data: Any,
        collators: Mapping[str, Any],
        size: int | None,
        judges: Any,
        others: Iterable[str],
    ) -> None:
        named = dict(data) if isinstance(data, Mapping) else {SINGLE: data}
        for name in {*collators, *others}:
            if name not in named:
                raise ValueError(
                    f"there is no auxiliary dataset {name!r}, only {', '.join(map(repr, named))}"
                )
        self.trainer, self.collators, self.batch_size = trainer, dict(collators), size
        if judges is not None:
            named[JUDGES] = judges
        self.datasets = {name: self._prepared(name, dataset) for name, dataset in named.items()}
        self.streams: dict[str, Stream] = {}

    @property
    def drawn(self) -> dict[str, int]:
        """How many batches were drawn from each dataset. A checkpoint needs nothing else."""
        return {name: stream.drawn for name, stream in self.streams.items()}

    def begin(self, drawn: Mapping[str, int]) -> None:
        """Make the data loaders. Each continues after the batches that were drawn before."""
        self.streams = {name: self._stream(name, drawn.get(name, 0)) for name in self.datasets}

    def draw(self, count: int, device: Any) -> Window:
        drawn = {
            n: [s.draw() for _ in range(count)] for n, s in self.streams.items() if n != JUDGES
        }
        return {
            n: (batches, self.trainer._get_num_items_in_batch(batches, device))
            for n, batches in drawn.items()
        }

    def _prepared(self, name: str, data: Any) -> Any:
        """Prepare an auxiliary dataset as TRL prepares its own dataset, because TRL tokenizes
        inside its trainers.
        """
        trainer = self.trainer
        prepare = getattr(trainer, "_prepare_dataset", None)
        options = getattr(trainer.args, "dataset_kwargs", None) or {}
        # TRL leaves these data as they are, and images, which its collator prepares.
        skips = options.get("skip_prepare_dataset", False) or getattr(
            trainer, "_is_vision_dataset", False
        )
        if prepare is None or skips or name in self.collators:
            return data
        has_format = hasattr(trainer, "_formatting_func")
        more = {"packing": False, "formatting_func": trainer._formatting_func} if has_format else {}
        try:
            return prepare(
                data,
                processing_class=trainer.processing_class,
                args=trainer.args,
                dataset_name=name,
                **more,
            )
        except Exception as error:  # it looks at the data without a check, so any error may come
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{trainer.argument_of(name)} cannot be prepared like train_dataset ({reason}); {_cure(data)}"
            ) from error

    def _stream(self, name: str, drawn: int) -> Stream:
        from accelerate import skip_first_batches

        data, args = self.datasets[name], self.trainer.args
        seed = args.seed if args.data_seed is None else args.data_seed
        size = self.trainer._train_batch_size if self.batch_size is None else self.batch_size
        whole = size * self.trainer.accelerator.num_processes if self.trainer.full_batches else 1
        shuffled = Shuffled(data, seed, name, whole) if hasattr(data, "__len__") else None
        with self.own_collator(name, trains=True):
            loader = self.trainer._get_dataloader(
                data,
                description=f"auxiliary {name!r}",
                batch_size=size,
                sampler_fn=lambda _: shuffled,
                is_training=True,
            )
        return Stream(loader, self.trainer.argument_of(name), shuffled, skip_first_batches, drawn)

    @contextmanager
    def own_collator(self, name: str, *, trains: bool = False) -> Iterator[None]:
        """Use the dataset's own collator, if it has one. Such a dataset keeps all its columns,
        which the Trainer might drop.

        `trains`: the batches train the model, and are not only measured.
        """
        trainer, args = self.trainer, self.trainer.args
        previous = trainer.data_collator, args.remove_unused_columns
        if name in self.collators:
            trainer.data_collator = self.collators[name]
            args.remove_unused_columns = False
        trainer.data_collator = trainer.collator_of(name, trainer.data_collator, trains=trains)
        try:
            yield
        except ValueError as error:  # of transformers, about columns
            raise ValueError(f"{trainer.argument_of(name)}: {error}") from error
        finally:
            trainer.data_collator, args.remove_unused_columns = previous


def _cure(data: Any) -> str:
    if not hasattr(data, "column_names"):
        return f"it must be a datasets.Dataset, not a {type(data).__name__}: write datasets.Dataset.from_list(rows)"
    return f"give it the columns of train_dataset; it has {', '.join(map(repr, data.column_names or ()))}"


class CheckedLabels:
    """A collator that refuses labels for which the model has no output.

    The model's own error would not name the dataset, and on a GPU not even the label.
    """

    def __init__(self, collator: Any, what: str, classes: int) -> None:
        self.collator = collator
        self.what = what
        self.classes = classes

    def __call__(self, features: Any) -> Any:
        batch = self.collator(features)
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if isinstance(labels, Tensor) and not labels.is_floating_point():
            wrong = labels[(labels >= self.classes) | ((labels < 0) & (labels != -100))]
            if wrong.numel():
                raise ValueError(
                    f"{self.what} has the label {int(wrong[0])}, but the model has {self.classes} outputs, for labels from 0 to "
                    f"{self.classes - 1}; correct the labels, make the model with a larger num_labels, or pass "
                    "auxiliary_losses= with a function for labels of another kind"
                )
        return batch


class Shuffled(Sampler[int]):
    """A permutation that depends only on (seed, name, epoch), so it is the same on every worker and
    after a resume.

    The permutations of all epochs follow one another endlessly. A pass of the data loader takes as
    many of their entries as fill batches of `whole` examples, so a pass with short batches (`whole`
    = 1) is an epoch.
    """

    def __init__(self, data: Sized, seed: int, name: str, whole: int = 1) -> None:
        self.size, self.whole = len(data), whole
        # Without the name, two datasets of the same length would be drawn in the same order.
        self.seed = seed + zlib.crc32(name.encode())
        self.epoch = 0

    def __len__(self) -> int:
        return math.ceil(self.size / self.whole) * self.whole

    def __iter__(self) -> Iterator[int]:
        left, position = len(self), self.epoch * len(self)
        while left:
            epoch, first = divmod(position, self.size)
            generator = torch.Generator().manual_seed(self.seed + epoch)
            part = torch.randperm(self.size, generator=generator)[first : first + left].tolist()
            yield from part
            left, position = left - len(part), position + len(part)


@dataclass
class Stream:
    """Draws from a data loader over and over."""

    loader: Any  # prepared for this worker
    what: str  # the dataset's name in messages
    shuffled: (
        Shuffled | None
    )  # the sampler of the loader, if it has one; its epoch is a pass of the loader
    skip: Callable[[Any, int], Any]  # returns a loader that leaves out the first batches
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
        sized = self.shuffled is not None
        epoch, start = divmod(self.drawn, max(1, len(self.loader))) if sized else (0, self.drawn)
        while True:
            if self.shuffled is not None:
                self.shuffled.epoch = epoch
            position = start if sized else 0
            for batch in self.skip(self.loader, start) if sized and start else self.loader:
                position += 1
                if position > start:
                    self.drawn += 1
                    yield batch
            if position == 0:
                raise ValueError(
                    f"{self.what} yields no batch; it is empty, or drop_last drops its only batch"
                )
            # If the length is unknown, a resumed run must go through the data to find where it
            # stopped.
            epoch, start = epoch + 1, max(0, start - position)
