"""A phase of a job from its configuration: its strategy, its batches, its length, and whether the data suffices."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from attittud_lab.config.schema import Config, PhaseConfig, StrategyConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Task, mix
from attittud_lab.errors import InputError
from attittud_lab.models.network import Network, check_shared, matching
from attittud_lab.strategies import make_strategy
from attittud_lab.training.capture import CudaRecorder, Steps
from attittud_lab.training.evaluate import evaluate
from attittud_lab.training.phase import Phase
from attittud_lab.training.streams import Streams

logger = logging.getLogger("attittud")

FEW_JUDGES = 8
"""Fewer validation examples than these say more about themselves than about the task."""


def make_phase(
    name: str,
    config: Config,
    data: Prepared,
    model: Network,
    device: torch.device,
    metric: str,
    *,
    captured: bool = False,
) -> Phase:
    """A phase of a job, at its beginning. `captured`: its steps become CUDA graphs."""
    settings: PhaseConfig = getattr(config.training, name)
    strategy_config = config.strategy if name == "guided" else StrategyConfig(name="primary_only")
    weights = {source: config.data.auxiliary[source].weight for source in data.auxiliary}
    strategy = make_strategy(strategy_config, model, weights=weights, seed=mix(config.seed, name, "guide"))
    if strategy.needs_auxiliary and not data.auxiliary:
        raise InputError(
            f"strategy {strategy_config.name!r} needs auxiliary data, but data.auxiliary is empty; name a source there, or use "
            "strategy: primary_only"
        )
    batches = {source: config.data.auxiliary[source].batch_size or settings.batch_size for source in data.auxiliary}
    steps = phase_steps(name, settings, data, batches)
    strategy.check_batches(name, settings)
    _check_enough(name, settings, strategy_config, data.primary)
    _check_accumulation(name, settings, batches if strategy.needs_auxiliary else {})
    matching(model, strategy_config.exclude, "strategy.exclude")
    if strategy.needs_shared:
        check_shared(model, strategy_config.exclude, head=any(task.shares_head for task in data.auxiliary.values()))
    if strategy.uses_held_out and len(data.validation) < FEW_JUDGES:
        logger.warning(
            "strategy %s: the validation examples decide the weights, and there are only %d; so few can hardly tell what "
            "helps. Raise data.primary.validation, or use strategy: primary_only or multitask",
            strategy_config.name,
            len(data.validation),
        )
    if not strategy.trains_head:
        metric, settings = "loss", replace(settings, select="best")
    streams = Streams(
        model,
        data.primary,
        data.auxiliary,
        name,
        config.seed,
        settings.primary_batch,
        batches,
        strategy_config.basis_batch,
        device,
        accumulate=settings.accumulate,
        bf16=config.training.precision == "bf16",
        judges=data.validation if strategy.uses_held_out else None,
        held=captured,
    )

    def look() -> dict[str, float]:
        with streams.autocast():
            return evaluate(model, data.primary, data.validation, device)

    return Phase(
        name,
        settings,
        steps,
        streams,
        strategy,
        metric=metric,
        evaluate=look,
        log_every=config.log_every,
        log_layers=config.log_layers,
        checkpoint_every=config.checkpoint_every,
        captured=Steps(CudaRecorder(device)) if captured else None,
    )


def phase_steps(name: str, settings: PhaseConfig, data: Prepared, batches: Mapping[str, int]) -> int:
    """Updates of a phase; epochs are passes over the largest auxiliary source, or over the primary set."""
    if settings.epochs is None:
        return settings.steps
    passes = [len(data.primary.examples) / settings.primary_batch]
    if name == "guided" and data.auxiliary:
        passes = [len(task.examples) / batches[source] for source, task in data.auxiliary.items()]
    return max(1, math.ceil(settings.epochs * max(passes)))


def _check_enough(name: str, settings: PhaseConfig, config: StrategyConfig, primary: Task) -> None:
    available = len(primary.examples)
    wanted = {
        f"training.{name}.primary_batch": settings.primary_batch,
        "strategy.basis_batch": config.basis_batch or 0,
    }
    for key, size in wanted.items():
        if size > available:
            raise InputError(
                f"{key} asks for {size} primary examples at once, but the primary training set has only {available}; lower {key} "
                f"to at most {available}, or raise data.primary.train"
            )


def _check_accumulation(name: str, settings: PhaseConfig, batches: Mapping[str, int]) -> None:
    parts = settings.accumulate
    sizes = {f"training.{name}.primary_batch": settings.primary_batch}
    sizes |= {f"the batch size of auxiliary source {source}": size for source, size in batches.items()}
    for key, size in sizes.items():
        if size % parts:
            raise InputError(
                f"training.{name}.accumulate: {key} is {size}, which cannot be taken in {parts} equal micro-batches; make it a "
                f"multiple of {parts}"
            )
