"""A whole run: data, network, phases, and a folder that holds everything about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud_lab.config.schema import Config, StrategyConfig, to_dict
from attittud_lab.data.prepare import PRIMARY, WHITE, Prepared, encode, prepare
from attittud_lab.data.tasks import OBJECTIVES
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError
from attittud_lab.models.build import build_model, keep_description, reader
from attittud_lab.models.network import Network
from attittud_lab.models.weights import predicts, save_weights
from attittud_lab.output.logs import Log, check_log, open_log
from attittud_lab.output.progress import Progress
from attittud_lab.runs.folder import (
    REMARK,
    RunFolder,
    load_checkpoint,
    save_checkpoint,
    trained_once,
)
from attittud_lab.runs.model import WEIGHTS, ModelFile
from attittud_lab.runs.result import RunResult
from attittud_lab.training.channels import Channels, estimate, translated, wants_channels
from attittud_lab.training.devices import (
    captures,
    choose_device,
    enough_memory,
    fastest_threads,
    on_device,
    own_stream,
    repeatable,
    single_thread,
)
from attittud_lab.training.evaluate import (
    evaluate,
    fitted_temperature,
    has_both,
    outputs_of,
    seconds_each,
)
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.phases import Phases
from attittud_lab.training.sizes import phase_steps

CHANNELS = "channels"
"""The entry of run.json with the openness of the label channel of each source."""


def default_run_dir(config: Config, name: str) -> Path:
    """The folder of a run: output/NAME/STRATEGY/seed-SEED."""
    return Path(config.output) / name / config.strategy.name / f"seed-{config.seed}"


def load_data(
    config: Config,
    seed: int | None = None,
    others: Sequence[Prepared] = (),
    *,
    pooled: bool = False,
) -> Prepared:
    """Read the data of a job. Several runs can share the result, so that it is read and decoded
    once.

    `others` are data of the same folders whose images need not be decoded again. `pooled`: for a
    portfolio.
    """
    if seed is None:
        seed = config.seed
    return prepare(config.data, seed, _reader(config), others, pooled=pooled)


def read_again(config: Config, data: Prepared) -> Prepared:
    """Return pooled data as the model of `config` reads them: texts are tokenized again for this
    model, other data stay as they are.
    """
    if data.kind != "text":
        return data
    assert data.parts is not None
    return encode(config.data, data.parts, data.record["seed"], _reader(config), pooled=True)


def _reader(config: Config) -> Reader | None:
    """The tokenizer of the job's model; None if it reads no texts."""
    return reader(config.model, config.data, config.cache / "tokens")


@contextmanager
def conditions(config: Config, data: Prepared, device: torch.device) -> Iterator[None]:
    """Apply the settings of a run inside the block, with one thread until it sets its own number;
    then restore everything.
    """
    gpus = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(enough_memory(device))
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        stack.enter_context(repeatable(config.training.deterministic, device))
        if captures(config, data, device):
            stack.enter_context(own_stream(device))
        stack.enter_context(single_thread())
        yield


def new_model(config: Config, data: Prepared, device: torch.device) -> Network:
    """The network before the first step, on its device."""
    model = build_model(config.model, data, config.seed).to(device).train()
    if config.training.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's annotation leaves memory_format out
    return model


def chosen_metric(config: Config, data: Prepared, held_out: Tensor | None) -> str:
    """Return the metric that chooses the model; refuses one that is undefined for the task or for
    the targets of the held-out examples.

    `held_out`: these targets (n, or n x labels); None if they are not known yet.
    """
    metric: str = config.training.metric
    if metric == "auto":
        metric = OBJECTIVES[data.primary.objective].metric
    if metric == "auc" and not data.primary.several:
        raise InputError(
            "training.metric: auc is for several labels at once; use accuracy or macro_f1 for "
            "classes"
        )
    if metric == "auc" and held_out is not None and not has_both(held_out.cpu().numpy()).any():
        raise InputError(
            "data.primary.validation: no label has both positive and negative validation examples, "
            "so the AUC that chooses the model is not defined; raise data.primary.validation, or "
            "use training.metric: macro_f1"
        )
    return metric


def phase_names(config: Config) -> list[str]:
    """Return the names of the phases, which are also the names of their settings."""
    if config.training.mode == "joint":
        return ["guided"]
    return ["guided", "finetune"]


def steps_of_phases(config: Config, data: Prepared) -> dict[str, int]:
    """Return the steps of each phase; epochs need the number of examples."""
    return {name: phase_steps(config, name, data) for name in phase_names(config)}


def run(
    config: Config,
    seed: int | None = None,
    strategy: StrategyConfig | str | None = None,
    run_dir: str | Path | None = None,
    *,
    data: Prepared | None = None,
    progress: Progress | None = None,
    logs: Sequence[str] = (),
    fresh: bool = False,
    threads: int | None = None,
) -> RunResult:
    """Train one strategy with one seed and write its run folder.

    A finished run in the folder is not trained again. An unfinished run continues from its last
    checkpoint and ends as if it had never been interrupted. `fresh` starts over. `data` must belong
    to `config`. `logs` are names of dashboards. A run that takes place on another machine gets
    `threads`, the number that `threads_of` returns where the command was started.
    """
    for name in logs:
        check_log(name)
    if isinstance(strategy, str):
        strategy = StrategyConfig(name=strategy)
    if strategy is not None:
        config = replace(config, strategy=strategy)
    if seed is not None:
        config = replace(config, seed=seed)
    path = default_run_dir(config, "run") if run_dir is None else Path(run_dir)

    def train(folder: RunFolder) -> RunResult:
        """Begin or continue the run in its folder."""
        device = choose_device(config.device)
        shown = progress or Progress()
        prepared = on_device(data or load_data(config), device)
        channels = channels_of(config, prepared, folder, shown)
        count = folder.threads() or threads or threads_of(config, prepared)
        with conditions(config, prepared, device), ExitStack() as opened:
            job = _Job(config, prepared, device, folder, shown, channels)
            torch.set_num_threads(count)
            # Opened last, so that a run that is refused, or was finished before, does not appear in
            # a dashboard.
            for name in logs:
                log = open_log(name, path, to_dict(config))
                job.logs.append(opened.enter_context(closing(log)))
            return job.run()

    return trained_once(path, config, train, fresh=fresh)


def channels_of(
    config: Config, data: Prepared, folder: RunFolder, progress: Progress
) -> Channels | None:
    """Return the label channels of a run: from its folder if the run continues, else estimated now.

    None for a strategy that translates no labels.
    """
    if not wants_channels(config):
        return None
    path = folder.channels_path
    if not folder.about_path.exists() or not path.exists():
        return estimate(config, data, progress)
    try:
        return Channels.restore(load_checkpoint(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}; start over with --fresh") from None


def threads_of(config: Config, data: Prepared) -> int:
    """Choose the number of threads of a new run.

    It is the configured one, or the faster one in a short measurement. The measurement changes
    neither the data nor the state of random numbers. Whoever calls this records the number, so that
    a continued run does not depend on a second measurement.
    """
    usual = torch.get_num_threads()
    if config.training.threads is not None:
        return config.training.threads
    if usual == 1:
        return 1
    device = choose_device(config.device)
    with conditions(config, data, device):
        placed = on_device(data, device)
        model = new_model(config, placed, device)
        metric = chosen_metric(config, placed, placed.validation.targets)
        phase = Phase(phase_names(config)[0], config, placed, model, device, metric)

        def step() -> None:
            phase.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        with suppress(DivergedError):  # the run itself will say so
            return fastest_threads(step, usual)
    return 1


def model_file(config: Config, data: Prepared, folder: Path, **figures: Any) -> ModelFile:
    """Return what predictions need to know about a model of these data, with the figures of the
    model.
    """
    return ModelFile(
        kind=data.kind,
        shape=list(data.primary.examples.inputs.shape[1:]),
        classes=data.primary.classes,
        several=data.primary.several,
        white=data.record.get(WHITE, {}).get(PRIMARY),
        network=keep_description(config.model, folder),
        **figures,
    )


class _Job:
    """The phases of one run, one after the other."""

    def __init__(
        self,
        config: Config,
        data: Prepared,
        device: torch.device,
        folder: RunFolder,
        progress: Progress,
        channels: Channels | None,
    ) -> None:
        """Build the model and its phases; nothing is written yet.

        With `channels` the auxiliary tasks learn through them. `data` must be on the device.
        """
        self.config = config
        self.data = data
        self.device = device
        self.folder = folder
        self.progress = progress
        self.channels = channels
        self.logs: list[Log] = []
        self.model = new_model(config, data, device)
        self.metric = chosen_metric(config, data, data.validation.targets)
        # The model and the phases are built before anything is written: a strategy that cannot be
        # built makes no folder.
        captured = captures(config, data, device)
        # The model is built from the untranslated data, so that it has the same output layers, and
        # so the same initial weights, with every strategy.
        learned = data if channels is None else translated(data, channels)
        phases = []
        for name in phase_names(config):
            phase = Phase(name, config, learned, self.model, device, self.metric, captured=captured)
            phases.append(phase)
        self.phases = Phases(self.model, phases)

    def run(self) -> RunResult:
        """Train what is left, test the chosen model once, and write its files but the result."""
        self.folder.begin(self.data.record, self.device, torch.get_num_threads())
        if self.channels is not None:
            save_checkpoint(self.folder.channels_path, self.channels.state())
            self.folder.note(CHANNELS, self.channels.openness())
            self.folder.note(REMARK, self.channels.line())
            self.progress.say(self.channels.line())
        # Metrics of steps that will be done again are removed.
        saved = self.folder.checkpoint()
        if saved is None:
            self.folder.truncate(0)
        else:
            self.phases.load_state_dict(saved, self.folder.checkpoint_path)
            self.folder.truncate(saved["metrics_bytes"])
        for phase in self.phases.run(self.record, self.checkpoint, self.progress):
            if remark := phase.strategy.remark():
                self.folder.note(REMARK, remark)
        data = self.data
        test = evaluate(self.model, data.primary, data.test, self.device)
        save_weights(self.folder.path / WEIGHTS, self.model.state_dict())
        self.describe().sealed(self.folder.path).write(self.folder.path)
        examples = {
            "train": len(data.primary.examples),
            "validation": len(data.validation),
            "test": len(data.test),
        }
        for name, task in data.auxiliary.items():
            examples[f"auxiliary/{name}"] = len(task.examples)
        return RunResult(
            strategy=self.config.strategy.name,
            seed=self.config.seed,
            metric=self.metric,
            validation=self.phases.validation,
            test=test,
            phases=self.phases.summaries,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            examples=examples,
            run_dir=self.folder.path,
        )

    def describe(self) -> ModelFile:
        """Return what predictions need to know about the model."""
        data = self.data
        model = self.model
        targets = data.validation.targets
        temperature = None
        calibrated_on = 0
        if targets is not None and len(targets):
            scores = outputs_of(model, data.validation, self.device, head="primary")
            temperature = fitted_temperature(scores, targets.cpu())
            calibrated_on = len(data.validation)
        size = sum(tensor.nbytes for name, tensor in model.state_dict().items() if predicts(name))
        return model_file(
            self.config,
            data,
            self.folder.path,
            temperature=temperature,
            calibrated_on=calibrated_on,
            bytes=size,
            seconds=seconds_each(model, data.test, self.device, head="primary"),
        )

    def record(self, values: Mapping[str, Any]) -> None:
        """Write a line of metrics to the file and the dashboards; an evaluation also to the bar."""
        self.folder.record({"phase": self.phases.current.name, **values})
        if f"validation/{self.metric}" in values:
            names = (self.metric, "loss")
            self.progress.evaluated({name: values[f"validation/{name}"] for name in names})
        if not self.logs:
            return
        figures = dict(values)
        step = self.phases.finished_steps + figures.pop("step")
        # A dashboard may hold other projects too, hence the prefix.
        named = {f"attittud/{name.removeprefix('attittud/')}": v for name, v in figures.items()}
        for log in self.logs:
            log.log(named, step)

    def checkpoint(self) -> None:
        """Save the state, unless the strategy could not continue from it in the middle of a phase."""
        phase = self.phases.current
        if phase.strategy.resumable or phase.done:
            self.folder.save(self.phases.state_dict())
