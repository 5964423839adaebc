"""Read a trained model from the folder of its run.

Nothing in the folder is run as code: weights are safetensors, everything else is JSON and YAML
without tags.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from attittud_lab import features
from attittud_lab.config.schema import Config, ModelConfig
from attittud_lab.data.features import Features
from attittud_lab.data.prepare import DIGESTS
from attittud_lab.data.splits import unpack
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError, one_line
from attittud_lab.features.base import FeatureMap
from attittud_lab.files import read_json
from attittud_lab.models import find
from attittud_lab.models.build import reader, trained_model
from attittud_lab.models.network import Network
from attittud_lab.models.weights import load_weights
from attittud_lab.predict.model import Classifier, Model, NetworkMembers, SimpleMember
from attittud_lab.runs.model import CURE, DATA, Member, ModelFile, features_files, read_model
from attittud_lab.runs.result import typed
from attittud_lab.training.devices import choose_device
from attittud_lab.uses.evaluate import SimpleModel


def load(run: str | os.PathLike[str], device: str = "auto") -> Model:
    """Return the model in the folder of a finished run."""
    folder = Path(run).expanduser()
    where = choose_device(device)
    return assemble(folder, *read_model(folder), where)


def used_examples(run: str | os.PathLike[str]) -> npt.NDArray[np.uint64] | None:
    """Read the digests of the examples for training and validation; None if the run folder has
    none.
    """
    path = Path(run).expanduser() / DATA
    with _blamed(f"{path}: {DIGESTS} is damaged", "restore it from a backup, or remove this entry"):
        if not path.is_file():
            return None
        stored = read_json(path).get(DIGESTS)
        if stored is None:
            return None
        return unpack(stored)


@contextmanager
def _blamed(problem: str, advice: str = CURE) -> Iterator[None]:
    """Refuse a file of the run folder in which the block does not find what it expects. `problem`
    begins with the path of the file.
    """
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        raise InputError(f"{problem} ({reason}); {advice}") from None


def assemble(folder: Path, about: ModelFile, config: Config, where: torch.device) -> Model:
    """Return the model of a run folder on the device `where`: its networks, its simple models, and
    what turns inputs into tensors and features.
    """
    encoder: Reader | Features | None = None
    if about.kind == "table":
        encoder = _stored_features(folder, about)
    elif about.kind == "text" and any(map(_reads_as_the_job, about.members)):
        encoder = _text_reader(folder, config, _described(config.model, folder, about.network))
    total = sum(map(itemgetter("share"), about.members))
    groups = _network_members(folder, about, config, total)
    for group in groups:
        group.module = group.module.eval().requires_grad_(False).to(where)
        if config.training.channels_last:
            group.module = group.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's annotation leaves memory_format out
    simple = []
    maps: dict[str, FeatureMap] = {}
    for member in about.members:
        if member["kind"] == "simple":
            name = member["features"]
            if name not in maps:
                maps[name] = _stored_map(folder, name, where)
            simple.append(SimpleMember(_simple(folder, member), member["share"] / total, name))
    return Model(about, config, groups, simple, maps, encoder, where)


def _reads_as_the_job(member: Member) -> bool:
    """Return whether a member is a network that reads inputs as the one of `model:` does."""
    return member["kind"] == "network" and "model" not in member


def _network_members(
    folder: Path, about: ModelFile, config: Config, total: float
) -> list[NetworkMembers]:
    """Read the networks among the members, in groups that read the same tensors.

    A member with an entry `model` is another network than that of `model:`, and reads texts in its
    own way. `total` is the sum of the shares of all members, simple models included.
    """
    # By the name of the model that reads texts in its own way; "" for the reader of `model:`.
    groups: dict[str, list[tuple[Network, float]]] = {}
    readers: dict[str, Reader] = {}
    for member in about.members:
        if member["kind"] != "network":
            continue
        settings = config.model
        described = about.network
        if "model" in member:
            settings = ModelConfig(**typed(ModelConfig, member["model"]))
            described = member.get("network")
        settings = _described(settings, folder, described)
        if about.kind not in find(settings.name)[0].reads:
            raise _cannot_read(folder, settings, about.kind)
        key = ""
        if about.kind == "text" and "model" in member:
            key = settings.name
            if key not in readers:
                readers[key] = _text_reader(folder, config, settings)
        network = _network(folder / member["weights"], settings, about)
        groups.setdefault(key, []).append((network, member["share"]))
    temperature = about.temperature or 1.0
    members = []
    for key, group in groups.items():
        networks, shares = zip(*group, strict=True)
        share_of_group = sum(shares)
        shares_in_group = [share / share_of_group for share in shares]
        module = Classifier(
            networks, shares_in_group, several=about.several, temperature=temperature
        )
        members.append(NetworkMembers(module, share_of_group / total, readers.get(key)))
    return members


def _described(settings: ModelConfig, folder: Path, described: str | None) -> ModelConfig:
    """Return the settings of a network whose description lies in the folder `described` of the run;
    without such a folder, the settings as they are.
    """
    if described is None:
        return settings
    return replace(settings, name=f"hf:{folder / described}")


def _text_reader(folder: Path, config: Config, settings: ModelConfig) -> Reader:
    """Return the tokenizer of a network."""
    tokenizer = reader(settings, config.data, None)
    if tokenizer is None:
        raise _cannot_read(folder, settings, "text")
    return tokenizer


def _cannot_read(folder: Path, settings: ModelConfig, kind: str) -> InputError:
    """Return the error for a network that reads other examples than its run."""
    reason = f"{folder}: model {settings.name} cannot read {kind}s"
    return InputError(f"{reason}; restore the folder, or train again")


def _network(path: Path, settings: ModelConfig, about: ModelFile) -> Network:
    """Read one network from its weights; refuses weights of another network or of other classes."""
    weights = load_weights(path)
    advice = "restore the folder from a backup, or train again"
    with _blamed(f"{path}: does not fit model {settings.name}", advice):
        network = trained_model(settings, about.kind, about.shape, weights)
    if len(network.heads["primary"].weight) != len(about.classes):  # type: ignore[arg-type]  # a tensor
        problem = f"{path}: has another number of classes than the run folder says"
        raise InputError(f"{problem}; train again")
    return network


def _stored_map(folder: Path, name: str, where: torch.device) -> FeatureMap:
    """Read how examples become the features of simple models."""
    about, arrays = features_files(name)
    with _blamed(f"{folder / about}: does not say how examples become features"):
        plain = read_json(folder / about)
        tensors = load_weights(folder / arrays)
        feature_map = features.restore(str(plain["name"]), plain["settings"], tensors)
    feature_map.to(str(where))
    return feature_map


def _simple(folder: Path, member: Member) -> SimpleModel:
    """Read one simple model."""
    path = folder / member["about"]
    with _blamed(f"{path}: does not describe a model"):
        return SimpleModel.restore(read_json(path), load_weights(folder / member["weights"]))


def _stored_features(folder: Path, about: ModelFile) -> Features:
    """Read how rows of a table become features, as training saved it."""
    path = folder / DATA
    with _blamed(f"{path}: does not say how rows become features"):
        features = Features.read(read_json(path)["table"])
        if [features.width] != about.shape:
            raise ValueError(f"it has {features.width} features, the model {about.shape}")
    return features
