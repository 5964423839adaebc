"""The auxiliary datasets beside a Trainer's own one: prepared as it prepares that, drawn from without end, resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attittud.guide import SINGLE
from attittud.integrations.streams import Shuffled, Stream

Window = dict[str, tuple[list[Any], Any]]
"""By name: the batches for one step, and the items in them as the Trainer counts them."""


JUDGES = "judge_dataset"


class AuxiliaryData:
    """Args as those of `AttittudMixin`; `known` are names that its other arguments use."""

    def __init__(
        self,
        trainer: Any,
        datasets: Any,
        collators: Mapping[str, Any],
        batch_size: int | None,
        *,
        judges: Any,
        known: Iterable[str],
    ) -> None:
        named = datasets if isinstance(datasets, Mapping) else {SINGLE: datasets}
        for name in {*collators, *known}:
            if name not in named:
                raise ValueError(f"there is no auxiliary dataset {name!r}, only {', '.join(map(repr, named))}")
        self.trainer = trainer
        self.collators = dict(collators)
        self.batch_size = batch_size
        self.datasets = {name: self._prepared(name, data) for name, data in named.items()}
        if judges is not None:
            self.datasets[JUDGES] = self._prepared(JUDGES, judges)
        self.streams: dict[str, Stream] = {}

    @property
    def drawn(self) -> dict[str, int]:
        """Where each dataset stands: all of it that a checkpoint needs."""
        return {name: stream.drawn for name, stream in self.streams.items()}

    def begin(self, drawn: Mapping[str, int]) -> None:
        """Make the data loaders, to go on after so many batches."""
        self.streams = {name: self._stream(name, drawn.get(name, 0)) for name in self.datasets}

    def draw(self, count: int, device: Any) -> Window:
        window = {}
        for name, stream in self.streams.items():
            if name == JUDGES:
                continue
            batches = [stream.draw() for _ in range(count)]
            window[name] = batches, self.trainer._get_num_items_in_batch(batches, device)
        return window

    def _prepared(self, name: str, data: Any) -> Any:
        """TRL tokenizes inside its trainers; auxiliary datasets are treated the same."""
        trainer = self.trainer
        prepare = getattr(trainer, "_prepare_dataset", None)
        if prepare is None or name in self.collators:
            return data
        has_format = hasattr(trainer, "_formatting_func")
        more = {"packing": False, "formatting_func": trainer._formatting_func} if has_format else {}
        return prepare(data, processing_class=trainer.processing_class, args=trainer.args, dataset_name=name, **more)

    def _stream(self, name: str, drawn: int) -> Stream:
        from accelerate import skip_first_batches

        data, args = self.datasets[name], self.trainer.args
        seed = args.seed if args.data_seed is None else args.data_seed
        shuffled = Shuffled(data, seed, name) if hasattr(data, "__len__") else None
        with self._own_collator(name):
            loader = self.trainer._get_dataloader(
                data,
                description=f"auxiliary {name!r}",
                batch_size=self.batch_size or self.trainer._train_batch_size,
                sampler_fn=lambda _: shuffled,
                is_training=True,
            )
        return Stream(loader, name, shuffled, skip_first_batches, drawn)

    @contextmanager
    def _own_collator(self, name: str) -> Iterator[None]:
        """A dataset with a collator of its own keeps its columns too: the Trainer knows only those of its own loss."""
        trainer, args = self.trainer, self.trainer.args
        kept = trainer.data_collator, args.remove_unused_columns
        if name in self.collators:
            trainer.data_collator, args.remove_unused_columns = self.collators[name], False
        try:
            yield
        finally:
            trainer.data_collator, args.remove_unused_columns = kept
