"""The sizes of a phase: the examples of its batches, its updates, and what its data do not allow."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from attittud_lab.config.schema import Config, PhaseConfig, StrategyConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.strategies import Strategy

logger = logging.getLogger("attittud")

FEW_JUDGES = 8
"""The fewest validation examples without a warning from strategies that rely on them."""


def phase_config(job: Config, name: str) -> PhaseConfig:
    """Return the settings of a phase, `guided` or `finetune`."""
    config: PhaseConfig = getattr(job.training, name)
    return config


def auxiliary_batches(job: Config, name: str, data: Prepared) -> dict[str, int]:
    """Return the examples in a batch of each auxiliary source."""
    usual = phase_config(job, name).batch_size
    sizes = {}
    for source in data.auxiliary:
        sizes[source] = job.data.auxiliary[source].batch_size or usual
    return sizes


def phase_steps(job: Config, name: str, data: Prepared) -> int:
    """Return the updates of a phase.

    Epochs are passes over the largest auxiliary source, counted in batches, or over the primary
    set.
    """
    config = phase_config(job, name)
    if config.epochs is None:
        return config.steps
    passes = [len(data.primary.examples) / config.primary_batch]
    if name == "guided" and data.auxiliary:
        batches = auxiliary_batches(job, name, data)
        passes = [len(task.examples) / batches[source] for source, task in data.auxiliary.items()]
    return max(1, math.ceil(config.epochs * max(passes)))


def check_sizes(
    job: Config,
    name: str,
    data: Prepared,
    settings: StrategyConfig,
    strategy: Strategy,
    judges: int,
) -> None:
    """Refuse a strategy without data, and batches that are too large or cannot be divided into
    equal micro-batches.

    `settings` are those of the strategy, and `judges` is the number of held-out examples.
    """
    config = phase_config(job, name)
    if strategy.needs_auxiliary and not data.auxiliary:
        problem = f"strategy {settings.name!r} needs auxiliary data, but data.auxiliary is empty"
        raise InputError(f"{problem}; name a source there, or use strategy: primary_only")
    if strategy.uses_held_out and judges < FEW_JUDGES:
        logger.warning(
            "only %d validation examples decide the weights of strategy %s; raise "
            "data.primary.validation",
            judges,
            settings.name,
        )
    strategy.check_batches(name, config)
    primary = {f"training.{name}.primary_batch": config.primary_batch}
    basis = {"strategy.basis_batch": settings.basis_batch or 0}
    _check_not_above(primary | basis, len(data.primary.examples))
    divided = primary
    if strategy.needs_auxiliary:
        for source, size in auxiliary_batches(job, name, data).items():
            divided[f"the batch size of auxiliary source {source}"] = size
    for key, size in divided.items():
        if size % config.accumulate:
            problem = f"training.{name}.accumulate: {key} is {size}"
            raise InputError(f"{problem}; make it a multiple of {config.accumulate}")


def _check_not_above(sizes: Mapping[str, int], available: int) -> None:
    """Refuse batches, by the name of their setting, of more examples than there are."""
    for key, size in sizes.items():
        if size > available:
            problem = f"{key} is {size}, but there are only {available} primary training examples"
            raise InputError(f"{problem}; lower it, or raise data.primary.train")
