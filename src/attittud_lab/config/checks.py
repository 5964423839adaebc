"""What no single field of a configuration can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attittud_lab.errors import InputError

if TYPE_CHECKING:
    from attittud_lab.config.schema import CompareConfig, Config


def check(config: Config) -> None:
    """Refuse what does not go together."""
    for name in config.data.auxiliary:
        if not name.isidentifier():
            raise InputError(
                f"data.auxiliary: the name {name!r} must be letters, digits and _, as it is part of metric names"
            )
    if "primary" in config.data.auxiliary:
        raise InputError("data.auxiliary: the name 'primary' is taken by the primary task; choose another one")
    if config.data.subsets is not None and config.data.seed is None:
        raise InputError(
            "data.subsets: with data.seed: null every seed has its own split already; leave one of them out"
        )
    _check_compare(config.compare)


def _check_compare(compare: CompareConfig) -> None:
    if not compare.weights or not all(weight > 0 for weight in compare.weights):
        raise InputError(f"compare.weights: give weights above 0, got {compare.weights}")
    if len(set(compare.weights)) < 2 and not compare.space:
        raise InputError(
            f"compare.weights: multitask is to be tuned, so give at least two different weights above 0, got {compare.weights}"
        )
    for path, values in compare.space.items():
        if not path.startswith(("training.", "model.", "strategy.")) or path.endswith((".steps", ".epochs", ".mode")):
            raise InputError(
                f"compare.space: {path} cannot be tuned; all runs share their data and their steps. Give paths below training, "
                "model or strategy"
            )
        if not values:
            raise InputError(f"compare.space: {path} has no values; give a list of them")
    if compare.tuning_seeds > compare.seeds:
        raise InputError(
            f"compare.tuning_seeds is {compare.tuning_seeds}, but there are only {compare.seeds} seeds; lower it, or raise "
            "compare.seeds"
        )
