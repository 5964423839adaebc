"""What the primary task sees of the auxiliary gradients in the first steps of a job, before a day is spent on all of it.

The model trains as configured. Beside it a probe keeps a basis as the strategy would (same kind, rank and age), but from
other primary examples than those whose gradient is then looked at: a span always holds what it was built from. What is
measured comes from training examples alone (strategy auto hears its judges, validation examples, as it always does), the
test set is not read, and nothing is predicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud.eta import presets
from attittud.guide import Guide
from attittud.report import ratio
from attittud_lab.config.schema import Config, StrategyConfig, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.diagnose.alarms import auxiliary_alarm, primary_alarm, sign_alarm, verdict
from attittud_lab.diagnose.probe import Figures, Probe
from attittud_lab.errors import InputError
from attittud_lab.files import make_folder, only_one_process, without_nan, write_json
from attittud_lab.models.build import build_model
from attittud_lab.models.network import check_shared
from attittud_lab.output.progress import Progress, Quiet
from attittud_lab.runs.result import provenance
from attittud_lab.statistics import SignTest, Summary, batch_means, sign_test
from attittud_lab.strategies.guided import guide_arguments
from attittud_lab.strategies.layers import PARTS
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.evaluate import default_metric
from attittud_lab.training.phase import Phase, make_phase
from attittud_lab.training.train import load_data

FEWEST_BLOCKS = 4
VALIDATED = (
    "This describes the measured steps. No figure here has been validated as a predictor of the final result, and a rate of "
    "opposed directions (conflict) is no reason by itself to use or to drop a source: `attittud compare` decides."
)


def diagnose(
    config: Config, folder: Path, progress: Progress | None = None, *, steps: int = 200, data: Prepared | None = None
) -> dict[str, Any]:
    """Train the first steps of the guided phase, measure each, and write `folder`/diagnose.json. `data` is the config's."""
    if not config.data.auxiliary:
        raise InputError("data.auxiliary is empty, so there is nothing to diagnose; name a source there")
    device = choose_device(config.device)
    prepared = on_device(data or load_data(config), device)
    started, began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(config.model, prepared, config.seed).to(device).train()
        phase = make_phase("guided", config, prepared, model, device, default_metric(prepared.primary))
        # Longer than the job itself, the schedule of the learning rate would have no meaning.
        count = min(steps, phase.steps)
        probe = make_probe(config, phase)
        if count < FEWEST_BLOCKS * probe.block:
            raise InputError(
                f"{count} steps are too few for an interval where a basis is used for {probe.guide.refresh_every}; give at least "
                f"{FEWEST_BLOCKS * probe.block} by --steps and training.guided.steps, or lower strategy.refresh_every"
            )
        make_folder(folder)
        with only_one_process(folder):
            series = _train(phase, probe, count, progress or Quiet())
            about = {"config": to_dict(config), "started": started, "seconds": time.perf_counter() - began}
            about |= {"device": str(device), "made_with": provenance(("numpy", "scikit-learn", "scipy"))}
            result: dict[str, Any] = without_nan(summarise_steps(series, probe) | {"steps_asked": steps} | about)
            write_json(folder / "diagnose.json", result)
    return result


def make_probe(config: Config, phase: Phase) -> Probe:
    """With the basis of the configured strategy; where that has none, the default one of the same rank."""
    strategy, streams = config.strategy, phase.streams
    if strategy.eta is None and strategy.name not in presets():
        strategy = replace(strategy, name="multitask")
    if strategy.engine == "implicit":
        # It keeps no basis that could meet other gradients; this is the same one, stored.
        strategy = replace(strategy, engine="auto", refresh_every=1)
    check_shared(phase.model, strategy.exclude, head=any(task.shares_head for task in streams.tasks.values()))
    arguments = guide_arguments(strategy, dict.fromkeys(streams.tasks, 1.0), mix(config.seed, "diagnose"))

    def auxiliary() -> dict[str, Tensor]:
        streams.load(phase.state.step)  # the very batches of the coming update
        return streams.auxiliary()

    return Probe(
        Guide(phase.model, **arguments),
        lambda rows: streams.losses(streams.primary_task, rows.to(streams.primary_task.examples.inputs.device)),
        auxiliary,
        examples=len(streams.primary_task.examples),
        basis_batch=_basis_batch(strategy, streams.primary_batch),
        primary_batch=streams.primary_batch,
        seed=mix(config.seed, "diagnose"),
    )


def _basis_batch(strategy: StrategyConfig, primary_batch: int) -> int:
    return max(2, strategy.basis_batch or primary_batch)


def _train(phase: Phase, probe: Probe, steps: int, progress: Progress) -> list[Figures]:
    series, reported = [], 0
    progress.phase("diagnose", steps, 0)
    while phase.state.step < steps:
        series.append(probe.measure(phase.state.step))
        telemetry = phase.step()
        if phase.state.step % phase.log_every == 0 or phase.state.step == steps:
            values = phase.read(telemetry)
            progress.advance(phase.state.step - reported, values)
            reported = phase.state.step
    return series


def summarise_steps(series: Sequence[Figures], probe: Probe) -> dict[str, Any]:
    """All steps, their early and their late half; then the alarms, which look at all."""
    guide, space = probe.guide, probe.guide.subspace
    assert space is not None
    over = _Periods(len(series), probe.block)
    primary = over.means(torch.stack([figures.captured_primary for figures in series]))
    signs = over.signs(series, probe.chance)
    sources = {name: _source(series, name, probe.groups, over) for name in series[0].squares}
    if not math.isfinite(primary["all"].mean + sum(found["captured"]["all"].mean for found in sources.values())):
        raise InputError(
            "a gradient was not finite, so nothing can be said; lower training.guided.lr, or use precision fp32"
        )
    captured = {name: found["captured"]["all"] for name, found in sources.items()}
    alarms = [primary_alarm(primary["all"]), auxiliary_alarm(captured), sign_alarm(signs["all"])]
    rank = guide.rank if space.stored else space.layout.total
    return {
        "steps": len(series),
        "block": probe.block,
        "basis": guide.basis.name,
        "rank": rank,
        "refresh_every": guide.refresh_every,
        "include_mean": guide.include_mean,
        "basis_batch": probe.basis_batch,
        "fresh_batch": probe.fresh_batch,
        "shared_parameters": space.layout.total,
        "random_span": min(1.0, rank / space.layout.total),
        "captured_primary": _plain(primary),
        "half_batches": {period: asdict(test) | {"share": test.share} for period, test in signs.items()},
        "sources": _plain(sources),
        "alarms": [asdict(alarm) for alarm in alarms],
        "validated": VALIDATED,
        "verdict": verdict(alarms),
    }


def _source(series: Sequence[Figures], name: str, names: Sequence[str], over: _Periods) -> dict[str, Any]:
    """Shares of one source's squared norm; those of a layer group are among its three parts."""
    squares = torch.stack([figures.squares[name] for figures in series])  # steps x groups x 3
    found: dict[str, Any] = over.parts(squares.sum(1))
    found["opposed"] = over.means(torch.stack([figures.opposed[name] for figures in series]))
    own = torch.stack([figures.gradients[name] for figures in series])
    weight = ratio(own, own.sum(1, keepdim=True))
    found["layers"] = {
        group: {"weight": over.means(weight[:, i])} | over.parts(squares[:, i]) for i, group in enumerate(names)
    }
    return found


class _Periods:
    """Figures over all steps, the early and the late half."""

    def __init__(self, steps: int, block: int) -> None:
        self.block = block
        self.slices = {"all": slice(0, steps), "early": slice(0, steps // 2), "late": slice(steps // 2, steps)}

    def means(self, values: Tensor) -> dict[str, Summary]:
        numbers = values.tolist()
        return {period: batch_means(numbers[part], self.block) for period, part in self.slices.items()}

    def parts(self, squares: Tensor) -> dict[str, dict[str, Summary]]:
        """From steps x 3: the shares of the three parts, and `captured`, that of the first two."""
        shares = ratio(squares, squares.sum(1, keepdim=True))
        found = {part: self.means(shares[:, i]) for i, part in enumerate(PARTS)}
        return {"captured": self.means(shares[:, :2].sum(1)), **found}

    def signs(self, series: Sequence[Figures], chance: float) -> dict[str, SignTest]:
        """The directions of a block are a cluster: they share bases and examples, and almost a model."""
        tests = {}
        for period, part in self.slices.items():
            counts = torch.stack([torch.stack([f.agreeing, f.compared]) for f in series[part]])
            agreeing, compared = zip(*(block.sum(0).tolist() for block in counts.split(self.block)), strict=True)
            tests[period] = sign_test(agreeing, compared, chance=chance)
        return tests


def _plain(value: Any) -> Any:
    """Summaries as mappings."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return asdict(value)
