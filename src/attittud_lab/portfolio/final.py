"""From the trials to one model: the winner trained on all labels, or a mean of several networks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.files import write_atomically
from attittud_lab.models.network import load_weights, predicts, save_weights
from attittud_lab.portfolio.choose import HeldOut
from attittud_lab.portfolio.leaderboard import Standing
from attittud_lab.portfolio.trial import look_file, look_steps, phase_lengths
from attittud_lab.predict.model import AT_ONCE, assembled
from attittud_lab.runs.folder import save_checkpoint
from attittud_lab.runs.model import WEIGHTS, Member, ModelFile
from attittud_lab.training.evaluate import fitted_temperature, outputs_of, seconds_each
from attittud_lab.training.train import model_file

OUT_OF_FOLD = "out_of_fold.safetensors"


def refitted(folder: Path, weights: Mapping[Path, float]) -> list[Member]:
    """Return the members of a model whose networks were trained on all labels, from their files and shares."""
    if len(weights) == 1:
        write_atomically(folder / WEIGHTS, next(iter(weights)).read_bytes())
        return [Member(weights=WEIGHTS, share=1.0)]
    return _members(folder, weights)


def of_folds(
    folder: Path, standings: Mapping[str, Standing], picks: Mapping[str, int], trials: Mapping[str, Sequence[Path]]
) -> list[Member]:
    """Return the members of an ensemble: for each picked candidate, the network of every fold after its best look."""
    weights = dict[Path, float]()
    for label, count in picks.items():
        curve = standings[label].curve
        assert curve is not None
        weights |= {look_file(path, curve.best): count / len(trials[label]) for path in trials[label]}
    return _members(folder, weights)


def _members(folder: Path, weights: Mapping[Path, float]) -> list[Member]:
    found = []
    for number, (path, share) in enumerate(weights.items()):
        name = f"member-{number}.safetensors"
        save_weights(folder / name, {key: tensor for key, tensor in load_weights(path).items() if predicts(key)})
        found.append(Member(weights=name, share=share / sum(weights.values())))
    return found


def describe(
    folder: Path, config: Config, data: Prepared, members: list[Member], scores: Tensor, held_out: HeldOut
) -> ModelFile:
    """Return model.json without size and time; `scores` are the out-of-fold scores of the model."""
    temperature = fitted_temperature(scores, held_out.targets)
    count = len(held_out.targets)
    return model_file(config, data, folder, members=members, temperature=temperature, calibrated_on=count)


def tested(
    folder: Path, config: Config, data: Prepared, about: ModelFile, device: torch.device
) -> tuple[ModelFile, Tensor | None]:
    """Write model.json with size and time, and predict the test set (if there is one) as `attittud predict` would."""
    module = assembled(folder, about, config, device).module
    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    some = data.test if len(data.test) else data.primary.examples
    about = replace(about, bytes=size, seconds=seconds_each(module, some, device))
    about.write(folder)
    if not len(data.test) or data.test.targets is None:
        return about, None
    return about, outputs_of(module, data.test, device, batch_size=AT_ONCE, raw=True)


def where(config: Config, look: int) -> dict[str, Any]:
    """The phase and the step of a look."""
    step, lengths = look_steps(config)[look], phase_lengths(config)
    first, *later = lengths
    behind = bool(later) and step > lengths[first]
    return {"phase": later[0] if behind else first, "step": step - lengths[first] if behind else step}


def write_metrics(
    folder: Path, config: Config, lines: Sequence[Mapping[str, Any]], standing: Standing, metric: str
) -> None:
    """Write metrics.jsonl: the logged steps of the final training, and the out-of-fold figures of the best candidate."""
    assert standing.curve is not None
    found = [dict(line) for line in lines]
    order = list(phase_lengths(config))
    for look, (score, loss) in enumerate(zip(standing.curve.scores, standing.curve.losses, strict=True)):
        place = where(config, look)
        before = [
            line["seconds"] for line in lines if line["phase"] == place["phase"] and line["step"] <= place["step"]
        ]
        seconds = before[-1] if before else 0.0
        found.append({**place, "seconds": seconds, f"validation/{metric}": score, "validation/loss": loss})
    found.sort(key=lambda line: (order.index(line["phase"]), line["step"]))
    write_atomically(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in found).encode())


def write_predictions(
    folder: Path,
    standings: Sequence[Standing],
    held_out: HeldOut,
    rows: Tensor,
    final: Tensor,
    names: list[str] | None = None,
    compared: Mapping[str, Tensor] | None = None,
) -> None:
    """Write out_of_fold.safetensors: for the held-out labels, the outputs of each candidate's best look and of the model.

    `names` are what a person calls these examples. `compared` are the outputs whose difference is the worth of the auxiliary
    data: if the candidate stopped early, those of primary_only come from an earlier look than its best one.
    """
    outputs = {standing.candidate.label: standing.outputs for standing in standings if standing.curve is not None}
    state: dict[str, Any] = {
        "rows": rows,
        "targets": held_out.targets,
        "folds": torch.from_numpy(held_out.folds),
        "names": names,
        "candidates": outputs,
        "model": final,
        "compared": dict(compared or {}),
    }
    save_checkpoint(folder / OUT_OF_FOLD, state)
