"""The networks of a portfolio: a plan that the time allows, trials on folds rung by rung, and the
chosen ones' weights.

`run.py` calls this after the simple candidates, if `portfolio.learners` asks for networks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import torch

from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.files import read_json, write_json
from attittud_lab.models.network import files_read
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, InThisProcess, Job, Place
from attittud_lab.portfolio import budget, words
from attittud_lab.portfolio.budget import Plan
from attittud_lab.portfolio.candidates import (
    PortfolioCandidate,
    candidates,
    config_for,
    data_for,
    fitted,
    greedy_sum,
    may_sum,
    smaller_basis,
)
from attittud_lab.portfolio.choose import Curve, HeldOut, survivors
from attittud_lab.portfolio.folds import Folds, fold_data
from attittud_lab.portfolio.pace import Pace
from attittud_lab.portfolio.standing import COMPLETE, Standing, lowest_losses
from attittud_lab.portfolio.trial import (
    CHECKPOINT,
    TrialJob,
    TrialResult,
    look_file,
    look_steps,
    phase_lengths,
    run_trial,
    second_phase,
    stored,
)
from attittud_lab.runs.folder import RunFolder
from attittud_lab.training.phase import phase_steps
from attittud_lab.training.train import phase_names, threads_of

NETWORK = "network"
"""The name of the learner that trains the network of `model:`."""
LONG = 60.0
"""If the forecast is longer than this many seconds, a line says that more cores could be used."""
Execute = Callable[[Sequence[TrialJob]], Iterable[TrialResult]]
"""Runs trials, here or elsewhere, and gives their results in the order of the jobs."""


@dataclass
class Setting:
    """What the trials of a learner share."""

    config: Config
    data: Prepared
    """On the device that trains."""
    handed: Prepared
    """As the data were read, for trials in other processes."""
    device: torch.device
    folder: RunFolder
    folds: Folds
    held_out: HeldOut
    progress: Progress
    place: Place
    execute: Execute | None = None
    """Replaces the training of trials."""


class Networks:
    """The candidates of one learner that train a network, and how far each has come."""

    def __init__(
        self, setting: Setting, learner: str = NETWORK, *, continues: bool, part: float = 1.0
    ) -> None:
        """`part` of the budget is for this learner."""
        self.setting = setting
        self.learner = learner
        """Its name in tables."""
        self.part = part
        self.continues = continues
        """Whether an earlier process left results of trials."""
        self.execute = setting.execute or self.placed
        entries = candidates(setting.config, setting.data)
        if learner != NETWORK:
            entries = [replace(one, label=f"{learner}, {one.label}") for one in entries]
        self.entries = smaller_basis(entries, setting.folds.smallest)
        self.alone = self.entries[0].label
        """The candidate without auxiliary data."""
        steps = _steps(setting.config, setting.data)
        threads = setting.config.training.threads
        self.config = fitted(setting.config, setting.folds.smallest, steps, threads)
        self.standings: dict[str, Standing] = {}
        self.rungs: list[dict[str, Any]] = []
        self.jobs = 0
        self.expected = 0
        self.peak_disk = 0
        self.peak_memory = 0

    def run(self) -> None:
        """Plan, say what will happen, and train rung by rung."""
        setting = self.setting
        self.plan = self.planned()
        self.pace = Pace(self.plan, self.config, setting.folds.count, setting.place.at_once)
        alone = words.idle_cores(self.plan, setting.place.at_once, setting.device, LONG)
        lines = [
            words.coming(
                self.config,
                self.plan,
                setting.folds.count,
                setting.place.at_once,
                self.entries,
                self.learner,
            )
            + (" from the beginning" if self.continues else ""),
            words.legend(to_dict(entry.strategy) for entry in self.entries),
            alone,
            self.plan.decided,
        ]
        for line in lines:
            if line:
                setting.progress.say(line)
        self.climb()

    def planned(self) -> Plan:
        """Plan what the budget allows; a continued run reads its earlier plan."""
        setting = self.setting
        path = setting.folder.path / plan_file(self.learner)
        plan = Plan.read(path)
        if plan is None:
            fold = fold_data(setting.data, setting.folds, 0)
            threads = self.threads_on(fold)
            config = fitted(
                self.config, setting.folds.smallest, phase_lengths(self.config), threads
            )
            costs = budget.measure(self.entries, config, fold, setting.device)
            sums = may_sum(config, setting.data)
            plan = budget.plan(
                self.entries,
                config,
                setting.folds.count,
                costs,
                setting.device,
                sums=sums,
                part=self.part,
            )
            plan.write(path)
        setting.folder.note("threads", plan.threads)
        self.entries = [entry for entry in self.entries if entry.label in plan.candidates]
        self.config = fitted(self.config, setting.folds.smallest, plan.steps, plan.threads)
        return plan

    def threads_on(self, fold: Prepared) -> int:
        """Choose the threads of all trials, by steps of a candidate that uses auxiliary data if one
        does.
        """
        entry = self.entries[min(1, len(self.entries) - 1)]
        return threads_of(config_for(entry, self.config, self.config.seed), data_for(entry, fold))

    # ---------------------------------------------------------------------------------------- rungs

    def climb(self) -> None:
        """Train rung by rung; after each but the last, the worst candidates stop."""
        steps = look_steps(self.config)
        looks = [count - 1 for count in budget.rung_counts(self.config)]
        alive = list(self.entries)
        for number, look in enumerate(looks):
            labels = [entry.label for entry in alive]
            if self.plan.sums and number == 0:
                labels.append("a sum of sources")  # it may join
            self.begin(f"rung {number + 1} of {len(looks)}", len(alive))
            self.pace.begin(number, labels)
            alive = self.train_rung(alive, number, steps[look])
            kept = self.keep(alive, number, last=number == len(looks) - 1)
            rung = {"look": look, "step": steps[look], "candidates": len(alive), "kept": kept}
            self.rungs.append(rung)
            self.say_rung(number, len(looks), steps[look] / steps[-1])
            alive = [entry for entry in alive if entry.label in kept]
            going_on = {entry.label for entry in alive}
            for label in self.standings:
                if label not in going_on:
                    self.prune(label, stopped=True)

    def train_rung(
        self, alive: list[PortfolioCandidate], number: int, until: int
    ) -> list[PortfolioCandidate]:
        """Train the candidates up to the end of a rung; a sum of the best sources may join the
        first.
        """
        done = self.count_done(alive, until)
        jobs = len(alive) * self.setting.folds.count
        self.say_done(number, done, jobs)
        self.train(alive, number, until)
        if number > 0:
            return alive
        extra = greedy_sum(self.config, lowest_losses(self.standings), self.setting.data)
        if extra is None:
            return alive
        alive = [*alive, extra]
        self.pace.join([entry.label for entry in alive])
        if done == jobs:  # the earlier process may have stopped in this sum
            done += self.count_done([extra], until)
            jobs += self.setting.folds.count
            self.say_done(number, done, jobs)
        self.train([extra], number, until)
        return alive

    def keep(self, alive: Sequence[PortfolioCandidate], number: int, *, last: bool) -> list[str]:
        """Return the labels of the candidates that go on after a rung, best first."""
        values = {}
        for entry in alive:
            curve = self.standings[entry.label].curve
            if curve is not None:
                values[entry.label] = curve.value
        if not values:
            why = next(iter(self.standings.values())).diverged
            raise InputError(f"every network of the portfolio diverged: {why}")
        share = 1.0 if last else self.config.portfolio.rungs[number].keep
        return survivors(values, share, self.alone)

    def begin(self, stage: str, candidates: int) -> None:
        """Show that a stage begins, in which all folds of so many candidates are trained."""
        self.jobs = 0
        self.expected = candidates * self.setting.folds.count
        self.setting.progress.stage(stage)

    def say_rung(self, number: int, rungs: int, share: float) -> None:
        """Show a line about a rung that is over."""
        rung = self.rungs[-1]
        best = self.standings[rung["kept"][0]]
        left = ""
        if number < rungs - 1:
            self.pace.begin(number + 1, rung["kept"])
            left = self.pace.words()
        metric = self.setting.held_out.metric
        line = words.rung_over(number, rungs, share, rung, best, metric, left)
        self.setting.progress.say(line)

    # --------------------------------------------------------------------------------------- trials

    def trials(self, entries: Sequence[PortfolioCandidate], until: int) -> list[TrialJob]:
        """All folds of some candidates up to a step."""
        keeps = (
            self.config.portfolio.final == "ensemble" and self.config.portfolio.members == "folds"
        )
        jobs = []
        for entry in entries:
            for fold in range(self.setting.folds.count):
                folder = self.trial(entry.label, fold)
                jobs.append(TrialJob(self.config, entry, fold, until, folder, keeps))
        return jobs

    def count_done(self, entries: Sequence[PortfolioCandidate], until: int) -> int:
        """Count the trials of some candidates that are done before they are trained up to a
        step.
        """
        if not self.continues:
            return 0
        done = 0
        for job in self.trials(entries, until):
            if stored(job) is not None:
                self.pace.skip(job.candidate.label, job.fold)
                done += 1
        return done

    def say_done(self, rung: int, done: int, jobs: int) -> None:
        """Say how many trials of a rung an earlier process finished, and how long the others take.

        Nothing is said about a rung that is finished, since the line about its end follows.
        """
        if 0 < done < jobs:
            rungs = len(budget.rung_counts(self.config))
            self.setting.progress.say(words.continuing(done, jobs, rung, rungs, self.pace.words()))

    def train(self, entries: Sequence[PortfolioCandidate], rung: int, until: int) -> None:
        """Train all folds of some candidates up to a step."""
        results = iter(self.execute(self.trials(entries, until)))
        for entry in entries:
            trials = [next(results) for _ in range(self.setting.folds.count)]
            self.standings[entry.label] = self.standing(entry, rung, trials)
            for trial in trials:
                self.peak_memory = max(self.peak_memory, trial.memory)
            self.prune(entry.label)

    def standing(
        self, entry: PortfolioCandidate, rung: int, trials: Sequence[TrialResult]
    ) -> Standing:
        """What the trials of a candidate, one for each fold, show together."""
        is_last = rung + 1 == len(budget.rung_counts(self.config))
        standing = Standing(
            entry.label,
            {"learner": self.learner, **to_dict(entry.strategy)},
            alone=entry.alone,
            network=entry,
            rung=COMPLETE if is_last else rung + 1,
            steps=max(trial.steps for trial in trials),
            seconds=sum(trial.seconds for trial in trials),
            diverged=next((trial.diverged for trial in trials if trial.diverged), None),
        )
        if standing.diverged is None:
            parts = zip(*(trial.outputs for trial in trials), strict=False)
            looks = [torch.cat(outputs) for outputs in parts]
            standing.curve = Curve.of(looks, self.setting.held_out, second_phase(self.config))
            # The outputs of all looks of all candidates would need much memory.
            standing.outputs = looks[standing.curve.best]
        return standing

    def placed(self, jobs: Sequence[TrialJob]) -> Iterator[TrialResult]:
        """Run trials where they take place; yield each result as soon as all earlier ones are
        known.

        Trials that an earlier process finished are only read. They are counted first, so that
        they say nothing about the pace.
        """
        setting = self.setting
        done = set()
        for job in jobs:
            if stored(job) is not None:
                done.add(job.folder)
                self.pace.skip(job.candidate.label, job.fold)
        self.jobs += len(jobs)
        setting.progress.comparison(max(self.jobs, self.expected))
        setting.progress.skipped(len(done))
        setting.progress.remaining(*self.pace.left())
        calls = [self.call(job) for job in jobs if job.folder not in done]
        running = iter(setting.place.run(calls, setting.progress))
        results: dict[Path, TrialResult] = {}
        for job in jobs:
            if job.folder in done:
                result = stored(job)  # read again: all results at once would need much memory
                assert result is not None
                yield result
                continue
            while job.folder not in results:
                call, (result, seconds) = next(running)
                assert call.folder is not None
                results[call.folder] = result
                self.count(call.arguments[0], result, seconds)
            yield results.pop(job.folder)
        for _ in running:  # the place ends its work
            pass

    def count(self, job: TrialJob, result: TrialResult, seconds: float) -> None:
        """Let a trial that has just ended say how long the others take."""
        if result.diverged:
            self.pace.skip(job.candidate.label, job.fold)
        else:
            self.pace.finish(job.candidate.label, job.fold, seconds)
        self.setting.progress.remaining(*self.pace.left())

    def call(self, job: TrialJob) -> Job:
        """Describe a trial to the place that runs it."""
        setting = self.setting
        data = setting.data if isinstance(setting.place, InThisProcess) else setting.handed
        fold = "all labels" if job.fold is None else f"fold {job.fold + 1}"
        reads = files_read(job.config.model, job.config.seed)
        threads = self.config.training.threads or 1
        name = f"{job.candidate.label}, {fold}"
        return Job(name, trial_at, (job,), job.folder, data, reads, threads, job.config.device)

    def trial(self, label: str, fold: int | None) -> Path:
        """The folder of a trial."""
        return (
            self.setting.folder.trials_path
            / safe_name(label)
            / ("all" if fold is None else f"fold-{fold}")
        )

    def prune(self, label: str, *, stopped: bool = False) -> None:
        """Remove what is not needed later: looks that cannot become the best, states of stopped
        candidates.
        """
        self.peak_disk = peak_size(self.setting.folder)
        curve = self.standings[label].curve
        last = len(look_steps(self.config))
        keep: set[int] = set()
        if curve is not None:
            # The score of the last look is not final before the next one, over which it is
            # smoothed.
            last = len(curve.scores) - 1
            keep = {curve.best} if stopped else {curve.best_of(last), last}
        for fold in range(self.setting.folds.count):
            folder = self.trial(label, fold)
            if stopped:
                (folder / CHECKPOINT).unlink(missing_ok=True)
            # A run that continues after it was killed may already have later looks.
            for look in {*range(last + 1)} - keep:
                look_file(folder, look).unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------- final model

    def fold_weights(self, picks: Mapping[str, int]) -> dict[Path, float]:
        """The files and shares of an ensemble: the network of every fold after its best look."""
        weights = {}
        for label, count in picks.items():
            curve = self.standings[label].curve
            assert curve is not None
            folds = range(self.setting.folds.count)
            for fold in folds:
                weights[look_file(self.trial(label, fold), curve.best)] = count / len(folds)
        return weights

    def refit(self, labels: Sequence[str]) -> dict[str, TrialResult]:
        """Train candidates on all labels up to their best step; those that diverge are marked."""
        steps = look_steps(self.config)
        jobs = []
        for label in labels:
            standing = self.standings[label]
            assert standing.curve is not None and standing.network is not None
            until = steps[standing.curve.best]
            folder = self.trial(label, None)
            jobs.append(TrialJob(self.config, standing.network, None, until, folder))
        self.begin("final training", 0)
        self.pace.begin_final(labels, fmean(job.until for job in jobs) / steps[-1])
        results = dict(zip(labels, self.execute(jobs), strict=True))
        for label, result in results.items():
            self.peak_memory = max(self.peak_memory, result.memory)
            if result.diverged:
                why = f"on all labels, {result.diverged}"
                self.standings[label] = replace(self.standings[label], diverged=why, curve=None)
                self.setting.progress.say(
                    f"{label} is dropped: in its final training on all labels, {result.diverged}"
                )
        return results


def plan_file(learner: str) -> str:
    """The file of a learner's plan in the run folder."""
    if learner == NETWORK:
        return "plan.json"
    return f"plan-{safe_name(learner)}.json"


def _steps(config: Config, data: Prepared) -> dict[str, int]:
    """The steps of each phase, from all labels."""
    guided = config.training.guided
    batches = {}
    for name in data.auxiliary:
        batches[name] = config.data.auxiliary[name].batch_size or guided.batch_size
    steps = {}
    for name in phase_names(config):
        steps[name] = phase_steps(name, getattr(config.training, name), data, batches)
    return steps


def safe_name(label: str) -> str:
    """Return a name for files: labels have letters that no file may have."""
    name = re.sub(r"[^\w.=-]+", "-", label)
    if name == label:
        return name
    # Sources `a-b` and `a + b` would share a file.
    return f"{name[:60]}-{mix(label) % 16**8:08x}"


def trial_at(here: Here, job: TrialJob) -> tuple[TrialResult, float]:
    """Run a trial where it takes place; returns its result and the seconds, set-up included."""
    began = monotonic()
    result = run_trial(replace(job, folder=here.folder), here.data, here.progress)
    return result, monotonic() - began


def peak_size(folder: RunFolder) -> int:
    """Return the largest size of a run folder so far, in bytes.

    A file keeps it for a run that is killed and continued.
    """
    path = folder.trials_path / "peak.json"
    size = 0
    for where, _, names in os.walk(folder.path):
        for name in names:
            with suppress(FileNotFoundError):  # another process has just given it its last name
                size += Path(where, name).stat().st_size
    before = int(read_json(path)) if path.exists() else 0
    if size > before:
        write_json(path, size)
    return max(size, before)


def full_runs(standings: Iterable[Standing], folds: int, steps: int) -> float:
    """Return how many full runs the trials took together."""
    return sum(standing.steps for standing in standings) * folds / steps
