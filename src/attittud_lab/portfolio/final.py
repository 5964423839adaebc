"""From the chosen candidates to one model: its members, its description, and its test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import PRIMARY, Prepared
from attittud_lab.files import write_atomically
from attittud_lab.models.build import DESCRIPTION, keep_description
from attittud_lab.models.weights import load_weights, predicts, save_weights
from attittud_lab.portfolio.choose import HeldOut
from attittud_lab.portfolio.networks import NETWORK, Networks, safe_name
from attittud_lab.portfolio.standing import Standing, usable
from attittud_lab.portfolio.trial import TrialResult, phase_lengths
from attittud_lab.predict.restore import assemble
from attittud_lab.runs.folder import save_checkpoint
from attittud_lab.runs.model import WEIGHTS, Member, ModelFile
from attittud_lab.training.evaluate import fitted_temperature
from attittud_lab.training.train import model_file

OUT_OF_FOLD = "out_of_fold.safetensors"
TIMED = 32
"""Examples of the batch whose prediction is timed."""


@dataclass
class Members:
    """The members of a model in a run folder: networks and simple models.

    While members are added, the share of each is its number of picks; `shared` divides by the sum.
    """

    folder: Path
    files: list[Member] = field(default_factory=list)
    steps: int = 0
    """Steps of the training on all labels."""
    seconds: float = 0.0
    parameters: int = 0
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Logged steps of the training of networks on all labels, by candidate."""

    def add_networks(self, networks: Networks, picks: Mapping[Path, float]) -> None:
        """Copy networks of a learner into the folder, as members.

        `picks` has the files of their weights, and how many picks each of them stands for. A member
        says which network it is, unless that is the network of `model:`, which model.json has.
        """
        description: dict[str, Any] = {}
        if networks.learner != NETWORK:
            model = networks.config.model
            description["model"] = to_dict(model)
            name = f"{DESCRIPTION}-{safe_name(networks.learner)}"
            folder = keep_description(model, self.folder, name)
            if folder is not None:
                description["network"] = folder
        for path, count in picks.items():
            tensors = load_weights(path)
            predicting = {key: tensor for key, tensor in tensors.items() if predicts(key)}
            name = self._save(predicting)
            member = {"kind": "network", "weights": name, "share": count, **description}
            self.files.append(Member(**member))  # type: ignore[typeddict-item]  # built in two parts

    def add_refitted(
        self, networks: Networks, picks: Mapping[str, int], results: Mapping[str, TrialResult]
    ) -> None:
        """Add the networks that were trained on all labels, with what their training took.

        `picks` and `results` are by the candidates' labels.
        """
        picks_by_file = {}
        for label, result in results.items():
            picks_by_file[networks.trial_folder(label, None) / WEIGHTS] = float(picks[label])
            self.steps += result.steps
            self.seconds += result.seconds
            self.lines[label] = result.lines
        self.add_networks(networks, picks_by_file)

    def add_simple(
        self,
        plain: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        features: str,
        *,
        share: float,
        seconds: float,
    ) -> None:
        """Write a simple model into the folder, as a member.

        `plain` is its description and `tensors` its arrays. `features` is the name of its features
        in files, `share` its number of picks, and `seconds` what its training took.
        """
        about = f"member-{len(self.files)}.json"
        write_atomically(self.folder / about, json.dumps(dict(plain)).encode())
        member = Member(kind="simple", weights=self._save(tensors), share=share)
        member["about"] = about
        member["features"] = features
        self.files.append(member)
        self.seconds += seconds

    def _save(self, tensors: Mapping[str, Tensor]) -> str:
        """Write the tensors of the next member; returns the name of the file."""
        name = f"member-{len(self.files)}.safetensors"
        save_weights(self.folder / name, dict(tensors))
        self.parameters += sum(map(torch.numel, tensors.values()))
        return name

    @property
    def shared(self) -> list[Member]:
        """The members with shares that add up to 1."""
        total = sum(member["share"] for member in self.files)
        return [Member({**member, "share": member["share"] / total}) for member in self.files]


def describe(
    folder: Path,
    config: Config,
    data: Prepared,
    members: Members,
    scores: Tensor,
    held_out: HeldOut,
) -> ModelFile:
    """Return model.json without size and time.

    The temperature is fitted to `scores`, the out-of-fold scores of the model, n x classes.
    """
    return model_file(
        config,
        data,
        folder,
        members=members.shared,
        temperature=fitted_temperature(scores, held_out.targets),
        calibrated_on=len(held_out.targets),
    )


def tested(
    folder: Path, config: Config, data: Prepared, about: ModelFile, device: torch.device
) -> tuple[ModelFile, Tensor | None]:
    """Write model.json with size and time, and predict the test set as `attittud predict` would.

    The time is that of a prediction for test examples, or for training examples if there is no test
    set. Returns the content of model.json and the test scores; None without labelled test examples.
    """
    model = assemble(folder, about, config, device)
    has_test = len(data.test) > 0
    examples = data.primary.examples
    read_inputs: Callable[[], Any] = partial(data.inputs, PRIMARY)
    if has_test:
        examples = data.test
        read_inputs = data.test_inputs
    inputs: Sequence[Any] = ()
    if model.simple or any(group.reader is not None for group in model.networks):
        inputs = read_inputs()
    batch = examples.rows(torch.arange(min(TIMED, len(examples))))
    seconds = model.seconds_each(lambda: model.with_features(inputs[:TIMED], batch), len(batch))
    about = replace(about, bytes=model.bytes, seconds=seconds).sealed(folder)
    about.write(folder)
    if not has_test or data.test.targets is None:
        return about, None
    return about, model.scores(model.with_features(inputs, data.test))


def write_metrics(
    folder: Path,
    networks: Networks | None,
    lines: Sequence[Mapping[str, Any]],
    winner: Standing,
    metric: str,
) -> None:
    """Write metrics.jsonl: the logged steps of the final training (`lines`), and the winner's
    out-of-fold figures by look. The file is empty if the winner is a simple candidate.
    """
    if winner.simple or networks is None:
        write_atomically(folder / "metrics.jsonl", b"")
        return
    curve = winner.curve
    assert curve is not None
    rows = list(map(dict, lines))
    for look, (score, loss) in enumerate(zip(curve.scores, curve.losses, strict=True)):
        when = networks.phase_and_step(look)
        # Looks come from the trials on folds; the time is that of the final training at this step.
        seconds = 0.0
        for line in lines:
            if line["phase"] == when["phase"] and line["step"] <= when["step"]:
                seconds = line["seconds"]
        figures = {f"validation/{metric}": score, "validation/loss": loss}
        rows.append({**when, "seconds": seconds, **figures})
    order = list(phase_lengths(networks.config))
    rows.sort(key=lambda row: (order.index(row["phase"]), row["step"]))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "metrics.jsonl", text.encode())


def write_predictions(
    folder: Path,
    standings: Sequence[Standing],
    held_out: HeldOut,
    rows: Tensor,
    model: Tensor,
    names: list[str] | None,
) -> None:
    """Write out_of_fold.safetensors: scores of each candidate's best look, and of the model.

    `rows` are the numbers of the held-out examples, `model` the model's scores for them (n x
    classes), and `names` what a person calls them.
    """
    state = {
        "rows": rows,
        "targets": held_out.targets,
        "folds": torch.from_numpy(held_out.folds),
        "names": names,
        "candidates": {standing.label: standing.outputs for standing in usable(standings)},
        "model": model,
    }
    save_checkpoint(folder / OUT_OF_FOLD, state)
