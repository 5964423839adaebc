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
    """Return the number of updates of a phase.

    Without `epochs` it is training.PHASE.steps. An epoch of the guided phase is a pass over the
    auxiliary source with the most batches; without such data, and in fine-tuning, it is a pass over
    the primary examples.
    """
    config = phase_config(job, name)
    if config.epochs is None:
        return config.steps
    batches_per_pass = [len(data.primary.examples) / config.primary_batch]
    if name == "guided" and data.auxiliary:
        sizes = auxiliary_batches(job, name, data)
        batches_per_pass = []
        for source, task in data.auxiliary.items():
            batches_per_pass.append(len(task.examples) / sizes[source])
    return max(1, math.ceil(config.epochs * max(batches_per_pass)))


def check_sizes(
    job: Config,
    name: str,
    data: Prepared,
    settings: StrategyConfig,
    strategy: Strategy,
    judge_count: int,
) -> None:
    """Refuse a strategy without data, and batches that are too large or cannot be divided into
    equal micro-batches; warn of too few held-out examples.

    `settings` are those of the strategy. `judge_count` is the number of held-out examples, which
    only matters to a strategy that lets them choose its weights.
    """
    config = phase_config(job, name)
    if strategy.needs_auxiliary and not data.auxiliary:
        problem = f"strategy {settings.name!r} needs auxiliary data, but data.auxiliary is empty"
        raise InputError(f"{problem}; name a source there, or use strategy: primary_only")
    if strategy.uses_held_out and judge_count < FEW_JUDGES:
        logger.warning(
            "only %d validation examples decide the weights of strategy %s; raise "
            "data.primary.validation",
            judge_count,
            settings.name,
        )
    strategy.check_batches(name, config)
    primary = {f"training.{name}.primary_batch": config.primary_batch}
    basis = {"strategy.basis_batch": settings.basis_batch or 0}
    _check_not_above(primary | basis, len(data.primary.examples))
    divided = dict(primary)  # a batch of the basis is not divided into micro-batches
    if strategy.needs_auxiliary:
        for source, size in auxiliary_batches(job, name, data).items():
            divided[f"the batch size of auxiliary source {source}"] = size
    for key, size in divided.items():
        if size % config.accumulate:
            problem = f"training.{name}.accumulate: {key} is {size}"
            raise InputError(f"{problem}; make it a multiple of {config.accumulate}")


def _check_not_above(sizes: Mapping[str, int], available: int) -> None:
    """Refuse a batch of more primary examples than there are; `sizes` are by name of setting."""
    for key, size in sizes.items():
        if size > available:
            problem = f"{key} is {size}, but there are only {available} primary training examples"
            raise InputError(f"{problem}; lower it, or raise data.primary.train")
