"""Label channels for the strategy `channel`: what the labels of each source mean for the primary
classes.

A run estimates them once, before its first step, from primary training examples and no others. The
model of a source is the linear learner, fitted to the source alone. The network of the run, trained
on the source alone, measured the same: 54.5 against 54.9 % on three development pairs with three
seeds (`primary_only`: 49.1 %), and its channels were less open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from attittud import LabelChannel
from attittud_lab import features
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.features.compute import compute
from attittud_lab.output.progress import Progress
from attittud_lab.strategies import find
from attittud_lab.training.devices import choose_device, single_thread
from attittud_lab.uses.base import SourceModels, held_out_loss
from attittud_lab.uses.landmarks import with_fewer_columns
from attittud_lab.uses.problem import Problem
from attittud_lab.uses.read import joined_inputs, labelled_rows, problem_of
from attittud_lab.uses.translated import Translation

MOST_EXAMPLES = 3000
"""The model of a source is fitted to so many of its examples at most, drawn at random."""
FOLDER = "features"
"""Where the rows of frozen encoders are kept, below the folder of all runs."""


@dataclass(frozen=True)
class Channels:
    """The channels of a run by source, and the features that their models read."""

    by_source: Mapping[str, LabelChannel]
    features: str

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs; a checkpoint can hold it."""
        states = {name: channel.state_dict() for name, channel in self.by_source.items()}
        return {"features": self.features, "sources": states}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Channels:
        """Return the channels from the result of `state`; raises ValueError for anything else."""
        try:
            states = state["sources"].items()
            by_source = {name: LabelChannel.from_state(channel) for name, channel in states}
            return cls(by_source, str(state["features"]))
        except (AttributeError, LookupError, TypeError, RuntimeError) as error:
            raise ValueError(f"is not the state of channels ({error!r:.100})") from None

    def openness(self) -> dict[str, float]:
        """λ of each source; with several labels at once the largest."""
        return {name: float(channel.openness.max()) for name, channel in self.by_source.items()}

    def line(self) -> str:
        """λ of each source in words, for the log and the report."""
        parts = [f"{name} {value:.2f}" for name, value in self.openness().items()]
        line = f"openness of label channels (0 to 1, on {self.features}): {', '.join(parts)}"
        if 0 in self.openness().values():
            line += "; at 0 a source takes no part"
        return line


def wants_channels(config: Config) -> bool:
    """Whether the strategy of a job translates labels."""
    return find(config.strategy.name).translates


def estimate(config: Config, data: Prepared, progress: Progress) -> Channels:
    """Estimate a channel for each source that has labels.

    The channels read one kind of features. Of the default features of this kind of data, the
    choice falls on those with the lowest loss of the sources' models on held-out examples of their
    own source; no primary label takes part in it.
    """
    rows = labelled_rows(data)
    if not rows:
        raise InputError(
            "strategy channel translates labels, but no auxiliary source has any; name another "
            "strategy, such as multitask"
        )
    seed = mix(config.seed, "channel") % 2**32  # learners take seeds of 32 bits
    for name, numbers in rows.items():
        if len(numbers) > MOST_EXAMPLES:
            generator = np.random.default_rng(mix(seed, name))
            rows[name] = np.sort(generator.permutation(len(numbers))[:MOST_EXAMPLES])
    inputs = joined_inputs(data, rows)
    device = choose_device(config.device)
    best: tuple[float, str, Problem] | None = None
    with single_thread(), threadpool_limits(limits=1):
        for name in features.choose_features(data.kind).names:
            feature_map = features.build(name, data.kind)
            feature_map.fit(inputs)
            matrix = compute(feature_map, inputs, config.cache / FOLDER, device, progress)
            problem = problem_of(data, rows, matrix, aligned=False)
            problem = with_fewer_columns(problem, seed)
            loss = sum(held_out_loss(source.labelled, seed) for source in problem.sources.values())
            if best is None or loss < best[0]:
                best = (loss, name, problem)
        assert best is not None
        _, chosen, problem = best
        models = SourceModels(problem.sources, seed)
        channels = {}
        for name, source in problem.sources.items():
            channels[name] = Translation.estimate(source, problem, models, seed).channel
    return Channels(channels, chosen)


def translated(data: Prepared, channels: Channels) -> Prepared:
    """Return the data with tasks that learn through their channels and the primary output layer.

    A source without labels, or with a closed channel, takes no part.
    """
    tasks = {}
    for name, task in data.auxiliary.items():
        channel = channels.by_source.get(name)
        if channel is None:
            tasks[name] = replace(task, silent=True)
        else:
            silent = float(channel.openness.max()) == 0
            tasks[name] = replace(task, channel=channel, shares_head=True, silent=silent)
    return replace(data, auxiliary=tasks)
