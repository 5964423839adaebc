"""Compare auxiliary with primary gradients in the first steps of a job, before a day is spent on all of it.

The model trains as configured. A probe keeps a basis as the strategy would (same kind, rank and age). It builds the basis from
other primary examples than the gradient that it measures, because a span always contains the examples it was built from.
Only training examples are measured (strategy auto uses validation examples, as always). The test set is not evaluated. These
figures predict nothing; the chance that auxiliary data help is a separate estimate from held-out labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud import Guide, Subspace, isolated_forward, presets
from attittud_lab.config.schema import Config, StrategyConfig, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError, counted
from attittud_lab.files import check_writable, make_folder, only_one_process, without_nan, write_json
from attittud_lab.models.network import build_model, check_shared
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio.candidates import PRIMARY_ONLY
from attittud_lab.portfolio.leaderboard import chance_words
from attittud_lab.portfolio.run import first_rung
from attittud_lab.runs.result import provenance
from attittud_lab.statistics import ALPHA, PROPORTION, SignTest, Summary, batch_means, sign_test
from attittud_lab.strategies import find
from attittud_lab.strategies.guided import PARTS, groups, guide_arguments
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.evaluate import default_metric
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data

FEWEST_BLOCKS = 4
SHORTEST_BLOCK = 5
"""Steps of a block, or `refresh_every` if that is more. Blocks count as independent, since they share no basis."""
LEAST_PRIMARY, LEAST_AUXILIARY = 0.05, 0.01
"""Shares of a gradient in the span below which an alarm fires."""
VALIDATED = (
    "These figures describe the measured steps. None of them has been validated as a predictor of the final result. A rate of "
    "opposed directions (conflict) alone is no reason to use or to drop a source: `attittud compare` decides."
)


def diagnose(
    config: Config,
    folder: Path,
    progress: Progress | None = None,
    *,
    steps: int = 200,
    data: Prepared | None = None,
    chance: bool = False,
) -> dict[str, Any]:
    """Train the first steps of the guided phase, measure each, and write `folder`/diagnose.json. `data` belongs to `config`.

    `chance`: then also train the first rung of a small portfolio, and estimate the chance that the auxiliary data help.
    """
    if not config.data.auxiliary:
        raise InputError("data.auxiliary is empty, so there is nothing to diagnose; name a source there")
    whole, pooled = config, False
    if find(config.strategy.name).trains_others:  # it has no gradients of its own
        config = replace(config, strategy=replace(config.strategy, name="auto"))
        pooled = 0 in (config.data.primary.validation, config.data.primary.test)  # only a portfolio allows this
    device = choose_device(config.device)
    prepared = on_device(data or load_data(config, pooled=pooled), device)
    judges = None if len(prepared.validation) else prepared.primary.examples
    started, began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(config.model, prepared, config.seed).to(device).train()
        phase = Phase("guided", config, prepared, model, device, default_metric(prepared.primary), judges=judges)
        # Beyond the steps of the job, the schedule of the learning rate has no meaning.
        count = min(steps, phase.steps)
        probe = make_probe(config, phase)
        if count < FEWEST_BLOCKS * probe.block:
            found = f"{counted(count, 'step is', 'steps are')} too few for 95 % intervals"
            cure = f"set --steps and training.guided.steps to at least {FEWEST_BLOCKS * probe.block}"
            if probe.block == probe.guide.refresh_every:
                found += f", because a new basis is computed only every {probe.block} steps"
                cure += ", or lower strategy.refresh_every"
            raise InputError(f"{found}; {cure}")
        make_folder(folder)
        check_writable(folder / "diagnose.json")  # now, not after minutes of training
        with only_one_process(folder):
            series = _train(phase, probe, count, progress or Progress())
            about = {"config": to_dict(config), "started": started, "seconds": time.perf_counter() - began}
            about |= {"device": str(device), "made_with": provenance(("numpy", "scikit-learn", "scipy"))}
            about["chance"] = chance_of(whole, folder, progress) if chance else None
            result: dict[str, Any] = without_nan(summarise_steps(series, probe) | {"steps_asked": steps} | about)
            write_json(folder / "diagnose.json", result)
    return result


def chance_of(config: Config, folder: Path, progress: Progress | None) -> dict[str, Any]:
    """Return the chance that the auxiliary data help, and say how it was estimated, or why it could not be estimated."""
    try:
        found = first_rung(config, folder, progress)
    except InputError as error:
        return {"value": None, "words": f"Chance that the auxiliary data help: not known. {error}"}
    others = [label for label in found["losses"] if label != PRIMARY_ONLY]
    best = min(others, key=lambda label: found["losses"][label])
    parts = f"{found['folds']} folds" if found["folds"] > 1 else "one split"
    how = (
        f"The estimate comes from short runs on {parts} of the labels, each with the first {found['share']:.0%} of the steps: "
        f"{PRIMARY_ONLY}, and {len(others)} weighted sums of the losses. The lowest log-loss on held-out labels is "
        f"{found['losses'][best]:.4f} with auxiliary data ({best}) and {found['losses'][PRIMARY_ONLY]:.4f} without"
    )
    said = chance_words(found)
    return {
        **found,
        "words": f"{said[0].upper()}{said[1:]}. {how}. `attittud train` with strategy=portfolio measures what the auxiliary data "
        "are worth.",
    }


def make_probe(config: Config, phase: Phase) -> Probe:
    """A probe with the basis of the configured strategy, or with the default basis where the strategy has none."""
    strategy, streams = config.strategy, phase.streams
    primary, primary_batch = streams.primary_task, streams.sizes["primary"]
    if strategy.eta is None and strategy.name not in presets():
        strategy = replace(strategy, name="multitask")
    check_shared(phase.model, strategy.exclude, head=any(task.shares_head for task in streams.tasks.values()))
    seed = mix(config.seed, "diagnose")

    def guide(strategy: StrategyConfig) -> Guide:
        return Guide(phase.model, **guide_arguments(strategy, dict.fromkeys(streams.tasks, 1.0), seed))

    made = guide(strategy)
    if made.basis.keeps_graph and made.basis.same_as is not None:
        # This basis cannot project other gradients; one with the same span is stored instead.
        made = guide(replace(strategy, basis=made.basis.same_as, engine="auto", refresh_every=1))

    def auxiliary() -> dict[str, Tensor]:
        streams.load(phase.state.step)  # the same batches as the coming update
        return streams.auxiliary()

    return Probe(
        made,
        lambda rows: streams.losses(primary, rows.to(primary.examples.inputs.device)),
        auxiliary,
        examples=len(primary.examples),
        basis_batch=max(2, strategy.basis_batch or primary_batch),
        primary_batch=primary_batch,
        seed=seed,
    )


def _train(phase: Phase, probe: Probe, steps: int, progress: Progress) -> list[Figures]:
    series, reported = [], 0
    progress.phase("diagnose", steps, 0)
    while phase.state.step < steps:
        series.append(probe.measure(phase.state.step))
        telemetry = phase.step()
        if phase.state.step % phase.job.log_every == 0 or phase.state.step == steps:
            progress.advance(phase.state.step - reported, phase.read(telemetry))
            reported = phase.state.step
    return series


def summarise_steps(series: Sequence[Figures], probe: Probe) -> dict[str, Any]:
    """Summarise all steps, the early and the late half; then the alarms, which use all steps."""
    guide, space, over = probe.guide, probe.space, _Periods(len(series), probe.block)
    shared = space.layout.total
    rank = shared if space.rows is None else guide.rank
    primary = over.means(torch.stack([figures.captured_primary for figures in series]))
    signs = over.signs(series, probe.chance)
    sources = {name: _source(series, name, probe.groups, over) for name in series[0].squares}
    captured = {name: found["captured"]["all"] for name, found in sources.items()}
    if not math.isfinite(primary["all"].mean + sum(share.mean for share in captured.values())):
        cure = "lower training.guided.lr, or use precision fp32"
        raise InputError(f"a gradient was not finite, so nothing can be measured; {cure}")
    raised = alarms(primary["all"], captured, signs["all"])
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
        "alarms": raised,
        "validated": VALIDATED,
        "verdict": last_line(raised),
    }


def _source(series: Sequence[Figures], name: str, names: Sequence[str], over: _Periods) -> dict[str, Any]:
    """Shares of one source's squared norm; the shares of a layer group are relative to the sum of its three parts."""
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
        """Return the shares of the three parts from steps x 3, and `captured`, the share of the first two."""
        shares = ratio(squares, squares.sum(1, keepdim=True))
        found = {part: self.means(shares[:, i]) for i, part in enumerate(PARTS)}
        return {"captured": self.means(shares[:, :2].sum(1)), **found}

    def signs(self, series: Sequence[Figures], chance: float) -> dict[str, SignTest]:
        """Run a sign test in which the directions of a block are a cluster: they share bases, examples and nearly one model."""
        tests = {}
        for period, part in self.slices.items():
            counts = torch.stack([torch.stack([f.agreeing, f.compared]) for f in series[part]])
            agreeing, compared = zip(*(block.sum(0).tolist() for block in counts.split(self.block)), strict=True)
            tests[period] = sign_test(agreeing, compared, chance=chance)
        return tests


def _plain(value: Any) -> Any:
    """Turn summaries into mappings."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else asdict(value)


def alarms(primary: Summary, auxiliary: Mapping[str, Summary], signs: SignTest) -> list[dict[str, Any]]:
    """Return reasons to doubt that a decomposition can help a job: `found` has the number, `cure` what to try.

    They say that a figure is small, or noise. They do not say that training will fail: no figure here has been validated as a
    predictor of the final result.
    """
    low = [name for name, share in auxiliary.items() if share.mean < LEAST_AUXILIARY]
    shares = "; ".join(f"{name} {_in_words(share)}" for name, share in auxiliary.items())
    return [
        {  # Does the span hold the gradient of primary examples that it was not built from?
            "name": "fresh_primary_outside_span",
            "fired": primary.mean < LEAST_PRIMARY,
            "found": f"the span captures {_in_words(primary)} of a fresh primary gradient (alarm under {LEAST_PRIMARY:.0%})",
            "cure": "build the basis from more examples (strategy.basis_batch), raise strategy.rank, lower "
            "strategy.refresh_every, or append the current primary gradient (strategy.include_mean=true)",
        },
        {  # Is there anything in the span to re-weight? The alarm is for any source.
            "name": "auxiliary_outside_span",
            "fired": bool(low),
            "found": f"share of the auxiliary gradient in the span: {shares} (alarm under {LEAST_AUXILIARY:.0%})",
            "cure": "raise strategy.rank and strategy.basis_batch; as it is, the weights of the helpful and the harmful part "
            f"have almost nothing to act on{' in ' + ', '.join(low) if low else ''}, and only the weight of the whole source "
            "can be tuned (strategy.auxiliary_weight)",
        },
        {  # Do other examples give the same signs, which decide between helpful and harmful?
            "name": "signs_are_noise",
            "fired": signs.p > ALPHA,
            "found": f"the gradients of two half-batches of primary examples agree in sign in {signs.agreeing} of {signs.n} "
            f"directions ({signs.share:.1%}; by chance it would be {signs.chance:.1%}); one-sided p = {signs.p:.2g}, alarm if "
            f"above {ALPHA:.2g} (neighbouring steps are similar, so for p these directions count as {signs.effective_n:.0f} "
            "independent ones)",
            "cure": "raise training.guided.primary_batch, take fewer and stronger directions (strategy.basis=svd with a lower "
            "strategy.rank), check the primary labels, or give more --steps if the agreement is above chance; as it is, chance "
            "decides which part counts as helpful",
        },
    ]


def last_line(alarms: Sequence[Mapping[str, Any]]) -> str:
    """Say which alarms fired, and what to try."""
    said = [f"({i}) {alarm['found']}; try: {alarm['cure']}" for i, alarm in enumerate(alarms, 1) if alarm["fired"]]
    if said:
        return "Alarms fired: " + ". ".join(said) + "."
    return "No alarm fired. That does not promise a gain; `attittud compare` measures it."


def _in_words(share: Summary) -> str:
    return f"{share.mean:.1%} ({share.low:.1%} to {share.high:.1%})"


@dataclass(frozen=True)
class Figures:
    """The measurements of one step, as tensors on the device; nothing waits for them."""

    captured_primary: Tensor
    """Share of a fresh primary gradient's squared norm in the span."""
    agreeing: Tensor
    compared: Tensor
    """The number of directions in which two half-batches have the same sign, and in which both have a sign."""
    squares: dict[str, Tensor]
    """By source: squared norms by layer group and part, groups x 3. They add up to the gradient's own. Within a
    group the parts need not be orthogonal, and may even cancel."""
    gradients: dict[str, Tensor]
    """By source: squared norms of the auxiliary gradient itself by layer group."""
    opposed: dict[str, Tensor]
    """By source: share of the directions that are harmful."""


@dataclass
class Probe:
    """Measures gradients without changing the model, except for `.grad`, which is cleared."""

    guide: Guide
    primary: Callable[[Tensor], Tensor]
    """Returns the losses of the chosen rows of all `examples`."""
    auxiliary: Callable[[], dict[str, Tensor]]
    """The mean losses by source."""
    examples: int
    basis_batch: int
    primary_batch: int
    seed: int

    def __post_init__(self) -> None:
        self.basis_batch, self.fresh_batch = batch_sizes(self.examples, self.basis_batch, self.primary_batch)
        self.block = max(SHORTEST_BLOCK, self.guide.refresh_every)
        self._pool = torch.empty(0)

    def measure(self, step: int) -> Figures:
        """The figures before update number `step`, counted from 0."""
        with isolated_forward(self.guide.model, self.guide.batch_norm, seed=mix(self.seed, step)), torch.enable_grad():
            if step % self.guide.refresh_every == 0:
                self._refresh(step)
            space = self.space
            # Two passes rather than two halves of one: BatchNorm would connect them.
            first, second = (space.gradient(self.primary(rows).mean()) for rows in self.halves(step))
            p, q, fresh = space.coordinates(first), space.coordinates(second), (first + second) / 2
            own, compared = space.coordinates(fresh), (p != 0) & (q != 0)
            squares, gradients, opposed = {}, {}, {}
            for name, loss in self.auxiliary().items():
                gradient = space.gradient(loss)
                parts = space.squares(fresh, gradient, include_mean=self.guide.include_mean)
                by_parameter = [one.double().square().sum() for one in space.layout.views(gradient)]
                squares[name], gradients[name] = self._by_group(parts), self._by_group(torch.stack(by_parameter))
                harmful = space.coordinates(gradient).sign() * own.sign() < 0
                opposed[name] = ratio(harmful.sum(), (own != 0).sum())
        captured = ratio(own.double().square().sum(), torch.dot(fresh.double(), fresh.double()))
        agreeing = (compared & (p.sign() == q.sign())).sum()
        return Figures(captured, agreeing, compared.sum(), squares, gradients, opposed)

    @property
    def space(self) -> Subspace:
        """The basis in use."""
        assert self.guide.subspace is not None
        return self.guide.subspace

    def halves(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw two half-batches of primary examples that were not used for the current basis.

        They are drawn independently of each other. Halves of one batch would have opposite signs too often: if one half has
        too much of a class, the other has too little, by a correlation of -h/(N - h) for h of N examples. Independent draws
        have some examples in common; `chance` allows for that.
        """
        size, half = len(self._pool), self.fresh_batch // 2
        first, second = (_permutation(size, mix(self.seed, name, step))[:half] for name in ("first", "second"))
        return self._pool[first], self._pool[second]

    @property
    def chance(self) -> float:
        """Return how often two half-batches agree in sign by chance alone.

        If the gradients of single examples vary around 0, the mean of N of them is still not 0, and half-batches of h drawn
        from these N have correlation h/N: they agree in the sign of this training set, not of the task.
        """
        return 0.5 + math.asin(self.fresh_batch / 2 / (self.examples - self.basis_batch)) / math.pi

    def _refresh(self, step: int) -> None:
        rows = _permutation(self.examples, mix(self.seed, "basis", step))
        basis, self._pool = rows[: self.basis_batch], rows[self.basis_batch :]
        # The guide finds the parameters that both tasks reach; the update that it writes is thrown away.
        self.guide.backward(
            self.primary(self.halves(step)[0]), self.auxiliary(), basis_losses=lambda: self.primary(basis), refresh=True
        )
        self.guide.model.zero_grad(set_to_none=True)

    def _by_group(self, squares: Tensor) -> Tensor:
        """Sum the rows of the parameters to one row for each group of layers."""
        wanted = list(groups(self.space.layout.names).values())
        self.groups = list(dict.fromkeys(wanted))
        index = torch.tensor([self.groups.index(group) for group in wanted], device=squares.device)
        return squares.new_zeros(len(self.groups), *squares.shape[1:]).index_add_(0, index, squares)


def batch_sizes(examples: int, basis_batch: int, primary_batch: int) -> tuple[int, int]:
    """Return the number of examples for a basis and for a fresh gradient (even), reduced if there are too few for both."""
    if examples < 4:
        found = f"the primary training set has {counted(examples, 'example')}, but at least 4 are needed, 2 of them for the basis"
        raise InputError(f"{found}: raise data.primary.train")
    fresh = max(2, primary_batch)
    basis = basis_batch if basis_batch + fresh <= examples else min(basis_batch, max(2, examples // 2))
    return basis, min(fresh, examples - basis) // 2 * 2


def _permutation(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, or 0 if the whole is 0."""
    return torch.where(whole == 0, 0.0, part / whole)
