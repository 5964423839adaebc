"""What the primary task sees of the auxiliary gradients in the first steps of a job, before a day is spent on all of it.

The model trains as configured. Alongside, a probe keeps a basis as the strategy would (same kind, rank and age), but from
other primary examples than those whose gradient is then looked at: a span always holds what it was built from. What is
measured comes from training examples alone (strategy auto asks validation examples, as it always does), the test set is
not read, and nothing is predicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud import Guide, presets
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.diagnose.probe import Figures, Probe, ratio
from attittud_lab.errors import InputError
from attittud_lab.files import make_folder, only_one_process, without_nan, write_json
from attittud_lab.models.build import build_model
from attittud_lab.models.network import check_shared
from attittud_lab.output.progress import Progress
from attittud_lab.runs.result import provenance
from attittud_lab.statistics import ALPHA, PROPORTION, SignTest, Summary, batch_means, sign_test
from attittud_lab.strategies.guided import guide_arguments
from attittud_lab.strategies.layers import PARTS
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.evaluate import default_metric
from attittud_lab.training.phase import Phase, make_phase
from attittud_lab.training.train import load_data

FEWEST_BLOCKS = 4
LEAST_PRIMARY, LEAST_AUXILIARY = 0.05, 0.01
"""Shares of a gradient in the span below which an alarm fires."""
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
            series = _train(phase, probe, count, progress or Progress())
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
    if "implicit" in (strategy.basis, strategy.engine):
        # It keeps no basis onto which other gradients could be projected; this is the same one, stored.
        strategy = replace(strategy, basis="exact", engine="auto", refresh_every=1)
    check_shared(phase.model, strategy.exclude, head=any(task.shares_head for task in streams.tasks.values()))
    seed = mix(config.seed, "diagnose")

    def auxiliary() -> dict[str, Tensor]:
        streams.load(phase.state.step)  # the very batches of the coming update
        return streams.auxiliary()

    return Probe(
        Guide(phase.model, **guide_arguments(strategy, dict.fromkeys(streams.tasks, 1.0), seed)),
        lambda rows: streams.losses(streams.primary_task, rows.to(streams.primary_task.examples.inputs.device)),
        auxiliary,
        examples=len(streams.primary_task.examples),
        basis_batch=max(2, strategy.basis_batch or streams.primary_batch),
        primary_batch=streams.primary_batch,
        seed=seed,
    )


def _train(phase: Phase, probe: Probe, steps: int, progress: Progress) -> list[Figures]:
    series, reported = [], 0
    progress.phase("diagnose", steps, 0)
    while phase.state.step < steps:
        series.append(probe.measure(phase.state.step))
        telemetry = phase.step()
        if phase.state.step % phase.log_every == 0 or phase.state.step == steps:
            progress.advance(phase.state.step - reported, phase.read(telemetry))
            reported = phase.state.step
    return series


def summarise_steps(series: Sequence[Figures], probe: Probe) -> dict[str, Any]:
    """All steps, their early and their late half; then the alarms, which look at all."""
    guide, space, over = probe.guide, probe.space, _Periods(len(series), probe.block)
    shared = space.layout.total
    rank = shared if space.rows is None else guide.rank
    primary = over.means(torch.stack([figures.captured_primary for figures in series]))
    signs = over.signs(series, probe.chance)
    sources = {name: _source(series, name, probe.groups, over) for name in series[0].squares}
    captured = {name: found["captured"]["all"] for name, found in sources.items()}
    if not math.isfinite(primary["all"].mean + sum(share.mean for share in captured.values())):
        raise InputError(
            "a gradient was not finite, so nothing can be said; lower training.guided.lr, or use precision fp32"
        )
    alarms = [primary_alarm(primary["all"]), auxiliary_alarm(captured), sign_alarm(signs["all"])]
    return {
        "steps": len(series),
        "block": probe.block,
        "basis": guide.basis.name,
        "rank": rank,
        "refresh_every": guide.refresh_every,
        "include_mean": guide.include_mean,
        "basis_batch": probe.basis_batch,
        "fresh_batch": probe.fresh_batch,
        "shared_parameters": shared,
        "random_span": min(1.0, rank / shared),
        "captured_primary": _plain(primary),
        "half_batches": {period: asdict(test) | {"share": test.share} for period, test in signs.items()},
        "sources": _plain(sources),
        "alarms": [asdict(alarm) for alarm in alarms],
        "validated": VALIDATED,
        "verdict": last_line(alarms),
    }


def _source(series: Sequence[Figures], name: str, names: Sequence[str], over: _Periods) -> dict[str, Any]:
    """Shares of one source's squared norm; those of a layer group are among its three parts."""
    squares = torch.stack([figures.squares[name] for figures in series])  # steps x groups x 3
    own = torch.stack([figures.gradients[name] for figures in series])
    weight = ratio(own, own.sum(1, keepdim=True))
    return {
        **over.parts(squares.sum(1)),
        "opposed": over.means(torch.stack([figures.opposed[name] for figures in series])),
        "layers": {
            group: {"weight": over.means(weight[:, i])} | over.parts(squares[:, i]) for i, group in enumerate(names)
        },
    }


class _Periods:
    """Figures over all steps, the early and the late half."""

    def __init__(self, steps: int, block: int) -> None:
        self.block = block
        self.slices = {"all": slice(0, steps), "early": slice(0, steps // 2), "late": slice(steps // 2, steps)}

    def means(self, shares: Tensor) -> dict[str, Summary]:
        values = shares.tolist()
        return {period: batch_means(values[part], self.block, PROPORTION) for period, part in self.slices.items()}

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
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else asdict(value)


# -------------------------------------------------------------------------------------------------------------- alarms


@dataclass(frozen=True)
class Alarm:
    """A reason to doubt that a decomposition can do anything for a job: `found` is its number, `cure` what to try.

    It says that a figure is small, or noise. It does not say that training will fail: no figure here has been validated
    as a predictor of the final result.
    """

    name: str
    fired: bool
    found: str
    cure: str


def primary_alarm(captured: Summary) -> Alarm:
    """Does the span hold more of a primary gradient than of the examples that it was built from?"""
    return Alarm(
        "fresh_primary_outside_span",
        captured.mean < LEAST_PRIMARY,
        f"the span captures {_in_words(captured)} of a fresh primary gradient (alarm under {LEAST_PRIMARY:.0%})",
        "build the basis from more examples (strategy.basis_batch), raise strategy.rank, lower strategy.refresh_every, or "
        "append the current primary gradient (strategy.include_mean=true)",
    )


def auxiliary_alarm(captured: Mapping[str, Summary]) -> Alarm:
    """Is there anything in the span to re-weight? The alarm is for any source."""
    found = "; ".join(f"{name} {_in_words(share)}" for name, share in captured.items())
    low = [name for name, share in captured.items() if share.mean < LEAST_AUXILIARY]
    return Alarm(
        "auxiliary_outside_span",
        bool(low),
        f"share of the auxiliary gradient in the span: {found} (alarm under {LEAST_AUXILIARY:.0%})",
        f"raise strategy.rank and strategy.basis_batch; as it is, the weights of the helpful and the harmful part have next to "
        f"nothing to act on{' in ' + ', '.join(low) if low else ''}, and only the weight of the whole source can be tuned "
        "(strategy.auxiliary_weight)",
    )


def sign_alarm(test: SignTest) -> Alarm:
    """Do the signs that decide between helpful and harmful come back with other examples?"""
    return Alarm(
        "signs_are_noise",
        test.p > ALPHA,
        f"two half-batches of primary examples agree in sign in {test.agreeing} of {test.n} directions "
        f"({test.share:.1%} where chance gives {test.chance:.1%}; {test.clusters} blocks of steps, worth "
        f"{test.effective_n:.0f} independent directions, one-sided p = {test.p:.2g}; alarm above {ALPHA:.2g})",
        "raise training.guided.primary_batch, take fewer and stronger directions (strategy.basis=svd with a lower "
        "strategy.rank), check the primary labels, or give more --steps if the agreement is above chance; as it is, helpful and "
        "harmful are told apart by the draw of the batch",
    )


def last_line(alarms: list[Alarm]) -> str:
    """Which alarms fired, with what to try."""
    fired = [f"({number}) {alarm.found}; try: {alarm.cure}" for number, alarm in enumerate(alarms, 1) if alarm.fired]
    if fired:
        return "Alarms fired: " + ". ".join(fired) + "."
    return "Alarms fired: none of the three. That is no promise of a gain; `attittud compare` measures one."


def _in_words(share: Summary) -> str:
    return f"{share.mean:.1%} ({share.low:.1%} to {share.high:.1%})"
