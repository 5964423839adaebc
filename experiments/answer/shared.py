"""Work that the methods on one pair and seed share, so that all rows together take a third of the
time. No result depends on it.

Inside `Shared.used()` the product finds

* the features that an earlier method on the same pair and seed has computed;
* the simple candidates that an earlier method has tried on the folds, as if its run continued;
* the rows of frozen encoders of all examples, test examples too. The package of an encoder is
  needed only for rows that are not there.

Every file is written whole under its last name, so processes may work in the same folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from attittud import LabelChannel
from attittud_lab import features
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.features.base import FeatureMap, Matrix, Plain
from attittud_lab.features.compute import compute
from attittud_lab.files import make_folder, write_atomically
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio import run as portfolio
from attittud_lab.portfolio import simple
from attittud_lab.portfolio.candidates import candidates
from attittud_lab.portfolio.simple import SimpleCandidates
from attittud_lab.uses.problem import Problem

ENCODERS = {"text": "minilm", "image": "efficientnet"}
"""The frozen encoder of each kind of data."""
Kept = dict[str, tuple[FeatureMap, Problem]]


class Shared:
    """What the methods on one pair and seed share. `cache` belongs to the pair; `key` names the
    seed, and the revision if it matters.
    """

    def __init__(self, cache: Path, kind: str, key: str) -> None:
        self.cache = cache
        self.trials = cache / "trials" / key
        self.encoder = ENCODERS.get(kind)
        self.problems: Kept = {}
        self.rows: dict[tuple[str, bytes], Matrix] = {}

    @contextmanager
    def used(self, *, report: bool) -> Iterator[None]:
        """Let product runs inside the block share their work. Without `report` they also leave out
        the tables of translated and suspicious labels, which change no prediction.
        """
        entries = {}
        if self.encoder is not None:
            self.check_encoder()
            entries[self.encoder] = replace(features.find(self.encoder)[0], needs=())
        with ExitStack() as opened:
            for target, name, value in (
                (portfolio, "SimpleCandidates", partial(SharedCandidates, self)),
                (features, "build", partial(self.built, features.build)),
                (features, "restore", partial(self.restored, features.restore)),
            ):
                opened.enter_context(patch.object(target, name, value))
            opened.enter_context(patch.dict(features._ENTRIES, entries))
            if not report:
                opened.enter_context(patch.object(portfolio, "translations", lambda *_: []))
                opened.enter_context(patch.object(portfolio, "suspicious", lambda *_: []))
            yield

    def check_encoder(self) -> None:
        """Refuse to run without the encoder: the product would skip it and carry on."""
        assert self.encoder is not None
        entry, _ = features.find(self.encoder)
        if entry.missing and not facts_file(self.cache, self.encoder).exists():
            raise SystemExit(
                f"{', '.join(entry.missing)} is not installed, and {self.cache} has no features of "
                "it; run `python -m experiments.answer embed` where it is, and copy the folder"
            )

    def built(self, build: Any, name: str, kind: str) -> FeatureMap:
        if name == self.encoder:
            return KeptRows(name, self.cache)
        result: FeatureMap = build(name, kind)
        return result

    def restored(
        self, restore: Any, name: str, plain: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> FeatureMap:
        if name == self.encoder:
            return KeptRows(name, self.cache)
        return Remembering(restore(name, plain, tensors), self.rows)


class SharedCandidates(SimpleCandidates):
    """Simple candidates whose features and trials another method may have made."""

    def __init__(self, shared: Shared, setting: Any, chosen: Sequence[str]) -> None:
        super().__init__(setting, chosen)
        self.shared = shared

    def prepare(self, name: str) -> Problem | None:
        if name not in self.shared.problems:
            problem = super().prepare(name)
            if problem is None:
                return None
            self.shared.problems[name] = (self.maps[name], problem)
        self.maps[name], problem = self.shared.problems[name]
        return problem

    def file(self, label: str) -> Path:
        return self.shared.trials / super().file(label).name


# ------------------------------------------------------------------------------------ feature maps


def facts_file(cache: Path, name: str) -> Path:
    """The file with what is known about an encoder, which its package would say."""
    return cache / f"{name}.json"


def recorded(name: str, cache: Path) -> FeatureMap:
    """The product's encoder, which reads facts about itself from a file if there is one."""
    entry, _ = features.find(name)
    original = resolve_name(f"attittud_lab.features.{entry.build}")
    facts = facts_file(cache, name)

    def plain(self: FeatureMap) -> Plain:
        if not facts.exists():
            make_folder(cache)
            write_atomically(facts, json.dumps(original.plain(self)).encode())
        description: Plain = json.loads(facts.read_text(encoding="utf-8"))
        return description

    feature_map: FeatureMap = type(original.__name__, (original,), {"plain": plain})()
    return feature_map


class KeptRows(FeatureMap):
    """The rows of a frozen encoder, each computed once and kept by the product's own cache."""

    def __init__(self, name: str, cache: Path) -> None:
        self.encoder = recorded(name, cache)
        self.name, self.reads = name, self.encoder.reads
        self.cache = cache

    def transform(self, inputs: Sequence[Any], progress: Progress | None = None) -> Matrix:
        return compute(self.encoder, inputs, self.cache / "features", "cpu", progress)

    def plain(self) -> Plain:
        return self.encoder.plain()

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Any]) -> KeptRows:
        raise NotImplementedError("Shared.restored makes these maps")


class Remembering(FeatureMap):
    """A fitted map that keeps its rows for the next method. All methods fit it to the same rows."""

    def __init__(self, fitted: FeatureMap, rows: dict[tuple[str, bytes], Matrix]) -> None:
        self.fitted = fitted
        self.name, self.reads = fitted.name, fitted.reads
        self.rows = rows

    def transform(self, inputs: Any, progress: Progress | None = None) -> Matrix:
        digest = hashlib.sha256()
        for example in inputs:
            content = example.encode() if isinstance(example, str) else example
            digest.update(hashlib.sha256(content).digest())
        key = (self.name, digest.digest())
        if key not in self.rows:
            self.rows[key] = self.fitted.transform(inputs, progress)
        return self.rows[key]

    def plain(self) -> Plain:
        return self.fitted.plain()

    def tensors(self) -> dict[str, Any]:
        return self.fitted.tensors()

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Any]) -> Remembering:
        raise NotImplementedError("Shared.restored makes these maps")


def embed(data: Prepared, cache: Path) -> int:
    """Compute the rows of the frozen encoder for all examples of a job; returns how many rows there
    are. It reads no labels.
    """
    name = ENCODERS.get(data.kind)
    if name is None:
        return 0
    parts = [data.inputs("primary"), data.test_inputs()]
    parts += [data.inputs(source) for source in data.auxiliary]
    inputs = [example for part in parts for example in part]
    return len(KeptRows(name, cache).transform(inputs))  # type: ignore[arg-type]  # dense


# ----------------------------------------------------------------------------- gold loss correction


@contextmanager
def without_shrinkage() -> Iterator[None]:
    """Estimate label channels as in Hendrycks et al. 2018: no prior and λ = 1."""
    with patch.object(LabelChannel, "estimate", gold):
        yield


def gold(
    log_probs: Tensor, labels: Tensor, shares: Tensor, *, classes: int, **_: int
) -> LabelChannel:
    """C[c, a] is the mean of p_s(a|x) over examples of class c; without an example it is π(a).

    A source with several labels at once has a channel for each: log_probs are n x [S x] labels,
    and the matrix is [S x] classes x labels.
    """
    probs = log_probs.double().softmax(-1)
    matrix = torch.stack([shares.double()] * classes, dim=-2)
    for number in range(classes):
        if (labels == number).any():
            matrix[..., number, :] = probs[labels == number].mean(0)
    return LabelChannel(matrix, torch.ones(shares.shape[:-1]), shares)


# ------------------------------------------------------------------------------------ the same runs


def plan(config: Config, data: Prepared) -> str:
    """Return a hash of everything that a portfolio will try and of how it chooses: runs with equal
    plans have equal results.
    """
    settings = to_dict(config)
    del settings["output"]
    # What a job leaves open is filled in, so that a default and the same choice by name are equal.
    portfolio_settings = settings["portfolio"]
    del portfolio_settings["learners"], portfolio_settings["candidates"]
    chosen_features = features.choose_features(data.kind, config.portfolio.features or ())
    portfolio_settings["features"] = chosen_features.names
    portfolio_settings["uses"] = {}
    portfolio_settings["networks"] = []
    for learner in simple.chosen_learners(config, data):
        if learner in simple.LEARNERS_OF_NETWORKS:
            portfolio_settings["networks"].append(learner)
        else:
            portfolio_settings["uses"][learner] = simple.chosen_uses(config)
    if portfolio_settings["networks"]:
        entries = candidates(config, data)
        portfolio_settings["candidates"] = [to_dict(entry.strategy) for entry in entries]
    return f"{mix(json.dumps(settings, sort_keys=True)):x}"
