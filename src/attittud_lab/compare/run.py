"""All runs of a comparison: tuning, equal steps, equal seconds. Its state is in the run folders alone, so it can be continued."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from attittud_lab.compare.candidates import (
    MULTITASK,
    PRIMARY_ONLY,
    Budget,
    Candidate,
    Tuned,
    Variant,
    candidates,
    job,
    planned,
    run_dir,
    seeds,
    variants,
)
from attittud_lab.compare.decide import VERSION, ByLabel, checked, content, costs, few_examples, slow
from attittud_lab.compare.table import recommended_run
from attittud_lab.config.load import dump
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.parts import check_held_out
from attittud_lab.data.prepare import DIGESTS, Prepared, split_seed
from attittud_lab.errors import InputError, counted
from attittud_lab.files import (
    make_folder,
    only_one_process,
    read_format,
    read_json,
    without_nan,
    write_atomically,
    write_json,
)
from attittud_lab.models.network import files_read
from attittud_lab.output.progress import Progress, parse_duration, readable
from attittud_lab.placing.job import Here, InThisProcess, Job, Place
from attittud_lab.runs.result import RunResult
from attittud_lab.statistics import FEWEST
from attittud_lab.strategies import find
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.evaluate import outputs_of
from attittud_lab.training.phase import DivergedError, Phase, phase_steps
from attittud_lab.training.train import chosen_metric, conditions, load_data, new_model, threads_of
from attittud_lab.training.train import run as train

Run = tuple[Candidate, Variant, Budget, int]
"""A run of a comparison: what is trained, with which settings, for how long, with which seed."""
TIMED_STEPS = 3
"""Steps of every strategy that are timed before the first run."""
TIMED_SECONDS = 3.0
"""Seconds over which a run in another process is timed, because its reports arrive in bundles."""
LONG = 600.0
"""Seconds from which a forecast says how to shorten the comparison."""
KEPT_BYTES = 1 << 30
"""Bytes of data in memory above which the data of other splits are dropped, and read again when they are needed."""


@dataclass(frozen=True)
class Request:
    """What a person typed, for the advice that a comparison ends with."""

    command: tuple[str, ...] = ()
    """The words of the command, without --quick and --fresh."""
    whole: Config | None = None
    """With --quick: the comparison without it."""
    gave_up: str = ""
    """With --quick: what it left out."""


@dataclass
class _Plan:
    """What is known about the runs of a comparison and their times."""

    untimed: set[str]
    """Strategies of which no run has been timed."""
    steps: int
    """Steps of a run."""
    at_budget: tuple[int, float | None]
    """The number of runs at equal seconds, which come last, and their seconds if a budget sets them."""
    at_once: int
    shorter: str = ""
    """How to shorten the comparison; empty once it has been said."""
    seconds: list[float] = field(default_factory=list)
    left: int = 0
    told: bool = False


class Forecast(Progress):
    """Times the trained runs and forecasts how long the others will take.

    It forecasts after the first steps, and again when every strategy has been run once.
    """

    def __init__(self, progress: Progress, plan: _Plan) -> None:
        self._progress, self._plan, self._label, self._at_least = progress, plan, "", 0.0
        # These calls are passed on unchanged.
        self.say, self.evaluated, self.end = progress.say, progress.evaluated, progress.end  # type: ignore[method-assign]

    def comparison(self, runs: int, done: int = 0) -> None:
        """Plan this many runs, including finished ones; `done` of them have been read."""
        self._plan.left = runs - done
        self._progress.comparison(runs)

    def begin(self, what: str) -> None:
        self._label = what.rpartition(", seed ")[0]
        self._progress.begin(what)

    def alongside(self, what: str) -> Progress:
        found = Forecast(self._progress.alongside(what), self._plan)
        found._label, found._at_least = what.rpartition(", seed ")[0], TIMED_SECONDS
        return found

    def known(self, label: str, seconds: float | None) -> None:
        """Count a run of this strategy; `seconds` is its training time, None if it was trained earlier."""
        plan = self._plan
        plan.left -= 1
        if seconds is not None and label in plan.untimed:
            plan.untimed.remove(label)
            plan.seconds.append(seconds)
            if not plan.untimed:
                self._tell(fmean(plan.seconds), "now that every strategy has been run once")
        if seconds is not None and not plan.told:
            self._tell(seconds, f"if all take as long as this run of {label}; the next forecast covers all strategies")

    def _tell(self, seconds: float, reason: str) -> None:
        plan = self._plan
        plan.told = True
        at_budget = min(plan.left, plan.at_budget[0])
        total = (plan.left - at_budget) * seconds + at_budget * (plan.at_budget[1] or seconds)
        if total > 0:
            total /= min(plan.at_once, plan.left)
            self._forecast(total, f"for the remaining {counted(plan.left, 'run')}, {reason}.")

    def measured(self, seconds: float, reason: str) -> None:
        """Say a forecast before the first run."""
        self._plan.told = True
        self._forecast(seconds, f"in all, because {reason}. A better forecast follows after whole runs.")

    def _forecast(self, seconds: float, rest: str) -> None:
        self.say(f"Forecast: about {readable(seconds)} {rest}")
        if seconds >= LONG and self._plan.shorter:
            self.say(self._plan.shorter)
            self._plan.shorter = ""

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._warm: float | None = None
        self._progress.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._progress.advance(steps, values)
        now = time.monotonic()
        if self._warm is None:  # the first steps, in which much is set up, do not count
            self._warm, self._timed = now, 0
            return
        self._timed += steps
        if not self._plan.told and now - self._warm > self._at_least:
            step = (now - self._warm) / self._timed
            text = f"because a step of {self._label} takes {step:.2g} s; the next forecast covers all strategies"
            self._tell(step * self._plan.steps, text)


class Runs:
    """The runs of a comparison: finished ones are read, the others are trained."""

    def __init__(self, config: Config, folder: Path, *, fresh: bool, place: Place) -> None:
        self.config, self.folder, self.fresh, self.place = config, folder, fresh, place
        self.results: dict[Path, RunResult | None] = {}
        self.same_work: dict[tuple[str, tuple[str, ...], Budget], list[RunResult]] = {}
        """Finished runs by their work, whatever their weight and seed."""
        self._data: dict[str, Prepared] = {}
        self._digests: dict[str, str] = {}
        self._threads: dict[str, int] = {}
        self._begun: dict[Path, Run] = {}
        self.took: list[float] = []
        """Seconds of the runs that were trained now, including evaluations and set-up."""

    def prepared(self, seed: int) -> Prepared:
        """The data of a seed, kept in memory for the next run that has the same split.

        Their record has no digests: for a million examples they would take 11 MB in the folder of every run.
        """
        config, key = self.config, self._key(seed)
        if key not in self._data:
            if sum(data.bytes for data in self._data.values()) > KEPT_BYTES:
                self._data.clear()
            self._data[key] = load_data(config, seed, list(self._data.values()))
            self._digests[key] = self._data[key].record.pop(DIGESTS)
        return self._data[key]

    def digests(self, seed: int) -> str:
        """The digests of the examples of a seed."""
        if self._key(seed) not in self._digests:
            self.prepared(seed)
        return self._digests[self._key(seed)]

    def _key(self, seed: int) -> str:
        config = self.config
        return json.dumps([to_dict(config.data), split_seed(config.data, seed), config.model.name])

    def finish(self, runs: Iterable[Run], forecast: Forecast) -> None:
        """Train the missing runs; afterwards `results` has all of them."""
        for done, (found, seconds) in self.place.run(self._jobs(runs, forecast), forecast):
            assert done.folder is not None
            self._keep(done.folder, found if found is None else replace(found, run_dir=done.folder))
            forecast.known(self._begun[done.folder][0].label, seconds)
            self.took.append(seconds)

    def _jobs(self, runs: Iterable[Run], forecast: Forecast) -> Iterator[Job]:
        """The jobs of runs that have to be trained. Finished runs are read instead."""
        for candidate, variant, budget, seed in runs:
            path = run_dir(self.folder, candidate, variant, budget, seed)
            if path in self._begun:
                continue
            self._begun[path] = candidate, variant, budget, seed
            config = replace(job(self.config, candidate, variant, budget), seed=seed)
            at = f" with weight {variant.weight:g}" if candidate.tuned else ""
            name = f"{candidate.label}{at}, seed {seed}"
            if (path / "result.json").exists() and not self.fresh:
                forecast.begin(name)
                self._keep(path, checked(train(config, run_dir=path)))
                forecast.end()
                forecast.known(candidate.label, None)
                continue
            data = self.prepared(seed)
            threads = self.threads_of(config, data)
            reads = files_read(config.model, seed)
            yield Job(name, train_one, (config, self.fresh, threads), path, data, reads, threads, config.device)

    def threads_of(self, config: Config, data: Prepared) -> int:
        key = json.dumps([to_dict(config.model), config.training.threads])
        if key not in self._threads:
            self._threads[key] = threads_of(config, data)
        return self._threads[key]

    def _keep(self, path: Path, found: RunResult | None) -> None:
        candidate, variant, budget, _ = self._begun[path]
        self.results[path] = found
        if found is not None:
            self.same_work.setdefault((candidate.label, variant.changes, budget), []).append(found)

    def one(self, candidate: Candidate, variant: Variant, budget: Budget, seed: int) -> RunResult | None:
        """A finished run; None where it diverged."""
        return self.results[run_dir(self.folder, candidate, variant, budget, seed)]


class Comparison:
    """One comparison in its folder."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        progress: Progress | None = None,
        *,
        fresh: bool = False,
        place: Place | None = None,
        request: Request | None = None,
    ) -> None:
        self.config, self.folder, self.progress = config, folder, progress or Progress()
        self.request = request or Request()
        self.place = place or InThisProcess()
        settings = config.compare
        check_held_out(config.data.primary)
        self.seeds = seeds(config)
        self.tuning_seeds = self.seeds[: settings.tuning_seeds]
        self.budget_seconds = None if settings.budget is None else parse_duration(settings.budget)
        self.candidates = candidates(config)
        self.variants = {c.label: variants(c.strategy, settings, tuned=c.tuned) for c in self.candidates}
        self.runs = Runs(config, folder, fresh=fresh, place=self.place)

    def run(self) -> dict[str, Any]:
        """Train all missing runs, and return the content of comparison.json."""
        make_folder(self.folder)
        with only_one_process(self.folder):
            return self._run()

    def _run(self) -> dict[str, Any]:
        write_atomically(self.folder / "config.yaml", dump(self.config).encode())
        budget = self.configured_budget()
        self._announce(budget)
        rows = self._tune(budget)
        at_steps = self._all_seeds(rows, {row.label: budget for row in rows})
        seconds, equal = self.equal_seconds(rows, budget)
        at_seconds = None
        if self.config.compare.equal == "both":
            # Where the steps are the same, as for multitask, there is nothing more to run.
            more = sum(equal[row.label] != budget for row in rows) * len(self.seeds)
            self.forecast.comparison(len(self.runs.results) + more, len(self.runs.results))
            at_seconds = seconds, self._all_seeds(rows, equal)
        factors = {path: factor for runs in self.runs.same_work.values() for path, factor in slow(runs).items()}
        slowest = sorted(factors, key=lambda path: -factors[path])
        found = content(self.config, self.folder, rows, at_steps, at_seconds)
        result: dict[str, Any] = without_nan(
            found
            | {"diverged": [label for label in self.variants if label not in at_steps]}
            | {"at_once": self._at_once()}
            | {"slow": {str(path.relative_to(self.folder)): factors[path] for path in slowest}}
            | self._advice(found)
        )
        write_json(self.folder / "comparison.json", result)
        if self.runs.took:  # otherwise the data need not be there any more
            self._keep_digests(result)
        return result

    def _keep_digests(self, result: Mapping[str, Any]) -> None:
        """Let `attittud predict` recognise the examples of the recommended run, whose model is likely to be used."""
        if (run := recommended_run(result)) is not None:
            path = self.folder / run[1] / "data.json"
            record = read_json(path)
            if DIGESTS not in record:
                write_json(path, record | {DIGESTS: self.runs.digests(int(run[0]))})

    def _at_once(self) -> int:
        """How many runs were trained at the same time: now, or in an earlier comparison in this folder."""
        path, now = self.folder / "comparison.json", self.place.at_once
        if path.exists() and not self.runs.fresh:
            with suppress(InputError, AttributeError, TypeError, ValueError):  # a damaged file is replaced soon
                return max(now, int(read_format(path, VERSION)["at_once"]))
        return now

    def _advice(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next command if the outcome is unclear, and what --quick left out, each with the time it takes."""
        found, request, more = dict[str, Any](), self.request, result["decision"]["seeds_needed"]
        rows = [row for table in result["tables"] for row in table["rows"]]
        each = fmean(self.runs.took or [row["seconds"] for row in rows])

        done = sum(planned(self.config, self.candidates))

        def time_of(runs: int) -> str:
            return readable(runs * each / max(1, min(self.place.at_once, runs)))

        def cost(config: Config) -> tuple[int, str]:
            runs = sum(planned(config, candidates(config))) - done
            return runs, time_of(runs)

        quick = ["--quick"] if request.whole else []
        if result["decision"]["few_examples"] and request.command:
            found["next"] = self._more_examples(quick, time_of(done))
        elif more and request.command:
            words = [word for word in request.command if not word.startswith("compare.seeds=")]
            words += [f"compare.seeds={more}", *quick]
            _, takes = cost(replace(self.config, compare=replace(self.config.compare, seeds=more)))
            why = f"adds {more - len(self.seeds)} seeds in about {takes} and keeps the finished runs"
            found["next"] = {"command": shlex.join(words), "why": why}
        if request.whole is not None:
            (runs, takes), found["gave_up"] = cost(request.whole), request.gave_up
            if runs:
                why = f"trains up to {counted(runs, 'more run')}, which take about {takes}"
                found["whole"] = {"command": shlex.join(request.command), "why": why}
        return found

    def _more_examples(self, quick: Sequence[str], takes: str) -> dict[str, str]:
        """Say how to test on more examples: with another split for every seed, where test examples are drawn from all."""
        one = next(run.run_dir for run in self.runs.results.values() if run is not None)
        parts = read_json(one / "data.json")["primary"]
        if parts["test"]["source"] != parts["train"]["source"]:
            raised = ", or raise data.primary.test" if isinstance(self.config.data.primary.test, int) else ""
            return {"why": f"label more test examples{raised}"}
        data = ("data.seed=", "data.test_seed=", "data.subsets=", "output=")
        words = [word for word in self.request.command if not word.startswith(data)]
        known = self.config.data
        changes = {"data.test_seed=null": known.test_seed is not None, "data.subsets=null": known.subsets is not None}
        words += ["data.seed=null", *(text for text, needed in changes.items() if needed)]
        # The finished runs have another split, so they cannot stay in the same folder.
        words += [f"output={Path(self.config.output) / 'new-splits'}", *quick]
        why = f"gives every seed its own test examples and takes about {takes}; a larger data.primary.test helps too"
        return {"command": shlex.join(words), "why": why}

    def configured_budget(self) -> Budget:
        """Return the configured steps; the data are read only to convert epochs into steps."""
        training = self.config.training
        phases = {"guided": training.guided} | ({} if training.mode == "joint" else {"finetune": training.finetune})
        data = self.runs.prepared(self.seeds[0]) if any(phase.epochs for phase in phases.values()) else None
        sources = self.config.data.auxiliary.items()
        batches = {name: source.batch_size or training.guided.batch_size for name, source in sources}
        steps = {
            name: phase.steps if data is None else phase_steps(name, phase, data, batches)
            for name, phase in phases.items()
        }
        return Budget(steps["guided"], steps.get("finetune", 0))

    def _announce(self, budget: Budget) -> None:
        """Say how many runs there are, and how long they will take."""
        at_steps, at_seconds = planned(self.config, self.candidates)
        what = ", to tune them and to compare them at equal steps"
        if at_seconds:
            what = f": {at_steps} to tune the strategies and to compare them at equal steps, and {at_seconds} to compare them at "
            what += "equal seconds"
        total = f"{'--quick: ' if self.request.whole else ''}{counted(at_steps + at_seconds, 'run')} of "
        total += counted(len(self.candidates), "strategy", "strategies")
        self.progress.say(f"{total}{what}. Finished runs are reused.")
        if find(self.config.strategy.name).trains_others:
            self.progress.say(
                f"strategy: {self.config.strategy.name} does not take part, because it tries several strategies itself; "
                "`attittud train` trains it"
            )
        steps, at_budget = budget.guided + budget.finetune, (at_seconds, self.budget_seconds)
        plan = _Plan(set(self.variants), steps, at_budget, self.place.at_once, self._shorter())
        self.forecast = Forecast(self.progress, plan)
        self.forecast.comparison(at_steps + at_seconds)
        if isinstance(self.place, InThisProcess) and type(self.progress) is not Progress:
            with suppress(DivergedError):  # the run itself will say that it diverged
                self._measure(budget)

    def _shorter(self) -> str:
        """Say how this comparison can be made shorter."""
        settings = self.config.compare
        fewest = max(FEWEST, settings.tuning_seeds)
        ways = {
            "--quick (a smaller comparison)": self.request.whole is None and settings.budget is None,
            f"fewer seeds (compare.seeds={fewest})": settings.seeds > fewest,
            "fewer strategies ('compare.strategies=[auto]')": len(settings.strategies) > 1,
            "several runs at a time (--workers 2)": self.place.at_once == 1,
        }
        found = ", ".join(text for text, possible in ways.items() if possible)
        return f"To shorten it: {found}. Finished runs are kept." if found else ""

    def _measure(self, budget: Budget) -> None:
        """Forecast from the first steps of every strategy, if anything has to be trained in this process."""
        tries, total, step = list(self._tries(budget)), 0.0, dict[str, float]()
        begun = any(run_dir(self.folder, *one).exists() for one in tries)
        if begun and not self.runs.fresh:  # the remaining runs are timed as they are trained
            return
        data, training = self.runs.prepared(self.seeds[0]), self.config.training
        if warning := few_examples(len(data.test), chosen_metric(self.config, data, None)):
            self.progress.say(warning)
        looks = training.guided.evaluations + (training.finetune.evaluations if budget.finetune else 0)
        for candidate in self.candidates:
            config = job(self.config, candidate, self.variants[candidate.label][0], budget)
            step[candidate.label], once, look = first_steps(config, data, self.runs.threads_of(config, data))
            run = once + step[candidate.label] * budget.guided + step[PRIMARY_ONLY] * budget.finetune + look * looks
            more = len(self.seeds) + (len(self.variants[candidate.label]) - 1) * len(self.tuning_seeds)
            again = candidate.label != MULTITASK or self.budget_seconds is not None  # else its runs are there
            at_seconds = len(self.seeds) if self.config.compare.equal == "both" and again else 0
            total += more * run + at_seconds * (self.budget_seconds or run)
        low, high = min(step, key=step.__getitem__), max(step, key=step.__getitem__)
        self.forecast.measured(total, f"a step takes from {step[low]:.2g} s ({low}) to {step[high]:.2g} s ({high})")

    def _tries(self, budget: Budget) -> Iterator[Run]:
        """All tries on the tuning seeds. Strategies take turns, so that a busy machine does not make one of them look slow."""
        for seed in self.tuning_seeds:
            for number in range(max(map(len, self.variants.values()))):
                for candidate in self.candidates:
                    for variant in self.variants[candidate.label][number : number + 1]:
                        yield candidate, variant, budget, seed

    def _tune(self, budget: Budget) -> list[Tuned]:
        """Every strategy chooses among the same number of tries on the same seeds, by its mean on validation."""
        self.runs.finish(self._tries(budget), self.forecast)
        rows = [self._choose(candidate, budget) for candidate in self.candidates]
        return [row for row in rows if row is not None]

    def _choose(self, candidate: Candidate, budget: Budget) -> Tuned | None:
        """The best try of a strategy; None where all diverged."""
        tries = {
            variant: [self.runs.one(candidate, variant, budget, seed) for seed in self.tuning_seeds]
            for variant in self.variants[candidate.label]
        }
        scores: dict[Variant, float | None] = dict.fromkeys(tries)
        order: dict[Variant, tuple[float, float, float]] = {}
        for variant, results in tries.items():
            whole = [run for run in results if run is not None]
            if len(whole) == len(results):
                score = scores[variant] = fmean(run.validation[run.metric] for run in whole)
                # Among equally good weights take the one nearest to 1, for which the strategy was made; then the lower loss.
                loss = fmean(run.validation["loss"] for run in whole)
                order[variant] = (score, -abs(math.log(variant.weight)), -loss)
        if not order:
            if candidate.label in (PRIMARY_ONLY, MULTITASK):
                raise _no_baseline(candidate.label, "weight")
            return None
        best = max(order, key=lambda variant: order[variant])
        # Costs come from the tuning seeds alone, so that more seeds later do not change the plan, and from runs with any weight:
        # a strategy whose chosen weight was timed on a busy machine does not count as slower.
        alike = [runs for variant, runs in tries.items() if variant.changes == best.changes]
        return Tuned(candidate, best, scores, *costs([run for runs in alike for run in runs if run is not None]))

    def _all_seeds(self, rows: list[Tuned], budgets: Mapping[str, Budget]) -> ByLabel:
        """Run seed by seed, so that an interrupted comparison has equally many runs of every strategy."""
        found: ByLabel = {row.label: {} for row in rows}
        runs = ((row.candidate, row.variant, budgets[row.label], seed) for seed in self.seeds for row in rows)
        self.runs.finish(runs, self.forecast)
        for seed in self.seeds:
            for row in rows:
                result = self.runs.one(row.candidate, row.variant, budgets[row.label], seed)
                if result is not None:
                    found[row.label][seed] = result
        for label in (PRIMARY_ONLY, MULTITASK):
            if not found[label]:
                raise _no_baseline(label, "seed")
        return found

    def equal_seconds(self, rows: list[Tuned], budget: Budget) -> tuple[float, dict[str, Budget]]:
        """Return the seconds (as many as multitask takes, or the budget), and by label the steps that take as long.

        A budget stretches both phases by the same factor; within the guided phase every strategy gets the same time.
        """
        multitask = next(row for row in rows if row.label == MULTITASK)
        usual = multitask.seconds_per_step * budget.guided + multitask.finetune_seconds
        seconds = usual if self.budget_seconds is None else self.budget_seconds
        factor = seconds / usual
        return seconds, {
            row.label: Budget(
                max(1, round(factor * budget.guided * multitask.seconds_per_step / row.seconds_per_step)),
                max(1, round(factor * budget.finetune)) if budget.finetune else 0,
            )
            for row in rows
        }


def _no_baseline(label: str, what: str) -> InputError:
    return InputError(
        f"{label} diverged with every {what}, so there is nothing to compare with; lower training.guided.lr"
    )


def first_steps(config: Config, data: Prepared, threads: int) -> tuple[float, float, float]:
    """Seconds of a step of the guided phase, of everything before the second step, and of an evaluation."""
    device, began = choose_device(config.device), time.perf_counter()
    with conditions(config, data, device):
        data = on_device(data, device)
        model = new_model(config, data, device)
        torch.set_num_threads(threads)
        phase = Phase("guided", config, data, model, device, "loss")
        times = list[float]()
        for _ in range(TIMED_STEPS + 1):
            phase.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter())
        outputs_of(model, data.validation, device, head="primary")
        look = time.perf_counter() - times[-1]
    return (times[-1] - times[0]) / TIMED_STEPS, times[0] - began, look


def train_one(here: Here, config: Config, fresh: bool, threads: int) -> tuple[RunResult | None, float]:
    """Train a run where it takes place; returns its result (None if it diverged) and the seconds."""
    began, found = time.monotonic(), None
    with suppress(DivergedError):
        found = train(config, run_dir=here.folder, data=here.data, progress=here.progress, fresh=fresh, threads=threads)
    return found, time.monotonic() - began


def compare(
    config: Config,
    folder: Path,
    progress: Progress | None = None,
    *,
    fresh: bool = False,
    place: Place | None = None,
    request: Request | None = None,
) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write comparison.json into its folder.

    `place` is where runs take place; `request` is what was typed.
    """
    return Comparison(config, folder, progress, fresh=fresh, place=place, request=request).run()
