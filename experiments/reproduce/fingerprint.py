"""What makes a run the same on every machine and in every version, in sixteen letters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import PRIMARY_ONLY
from attittud_lab.config.schema import Config
from attittud_lab.runs.folder import comparable

START_PARTS = 3
"""FINGERPRINT/seed-{seed}/weights.safetensors: where the weights lie that all runs of an experiment
start from.
"""


def fingerprint(config: Config) -> str:
    """Return a hash of the settings that decide a run's result, without where the data lie or what
    is logged.

    A Hugging Face model counts by the name of its folder, weights to start from by the last
    START_PARTS parts of their path, which name the run that made them. Auxiliary texts do not count
    in a run that does not train on them. Auxiliary images do: all images are normalised by their
    mean and deviation.
    """
    plain = comparable(config)
    _forget_later(config, plain)
    objectives = {source.objective for source in config.data.auxiliary.values()}
    if config.strategy.name == PRIMARY_ONLY and objectives <= {"masked_lm"}:
        plain["data"]["auxiliary"] = {}
    for name in ("device", "log_every", "log_layers", "checkpoint_every"):
        del plain[name]
    plain["training"].pop("threads", None)  # like the device, it decides how numbers are rounded
    for source in (plain["data"]["primary"], *plain["data"]["auxiliary"].values()):
        del source["path"]
    if config.model.name.startswith("hf:"):
        plain["model"]["name"] = f"hf:{Path(config.model.name.removeprefix('hf:')).name}"
    if config.model.weights is not None:
        plain["model"]["weights"] = "/".join(Path(config.model.weights).parts[-START_PARTS:])
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _forget_later(config: Any, plain: dict[str, Any]) -> None:
    """Remove from `plain`, which is changed, the settings of `config` that have their default and
    that the first committed results did not know: their fingerprints must stay.
    """
    for entry in fields(config):
        value = getattr(config, entry.name)
        default = entry.default
        if entry.default_factory is not MISSING:
            default = entry.default_factory()
        if entry.metadata.get("later") and value == default:
            plain.pop(entry.name, None)
        elif is_dataclass(value) and entry.name in plain:
            _forget_later(value, plain[entry.name])
        elif isinstance(value, dict) and entry.name in plain:
            for name, item in value.items():
                if is_dataclass(item):
                    _forget_later(item, plain[entry.name][name])
