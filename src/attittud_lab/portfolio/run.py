"""A whole portfolio: folds, a plan, trials rung by rung, the final model, and a run folder that holds everything about it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab.config.schema import Config, PortfolioConfig, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError, listed
from attittud_lab.files import make_folder, read_json, without_nan, write_json
from attittud_lab.models import find as find_model
from attittud_lab.models import pretrained
from attittud_lab.models.network import files_read
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, InThisProcess, Job, Place
from attittud_lab.portfolio import budget, final
from attittud_lab.portfolio.budget import Plan
from attittud_lab.portfolio.candidates import (
    PRIMARY_ONLY,
    PortfolioCandidate,
    candidates,
    fitted,
    greedy_sum,
    legend,
    may_sum,
    smaller_basis,
)
from attittud_lab.portfolio.choose import Curve, HeldOut, greedy, mixed, survivors
from attittud_lab.portfolio.folds import Folds, fold_data, make_folds
from attittud_lab.portfolio.leaderboard import (
    NAME,
    VERSION,
    Intervals,
    Standing,
    chance,
    chance_words,
    decision,
    guess,
    guess_words,
    like,
    lowest_losses,
    needed_looks,
    rank,
    ranking_words,
    rows,
    worth,
)
from attittud_lab.portfolio.trial import (
    CHECKPOINT,
    RESULT,
    TrialJob,
    TrialResult,
    look_file,
    look_steps,
    peak_memory,
    phase_lengths,
    pooled_data,
    run_trial,
    second_phase,
    stored,
)
from attittud_lab.runs.folder import RunFolder, trained_once
from attittud_lab.runs.model import WEIGHTS, Member
from attittud_lab.runs.result import PhaseSummary, RunResult
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.phase import phase_steps
from attittud_lab.training.train import chosen_metric, default_run_dir, new_model, phase_names, threads_of

LONG = 60.0
"""If the forecast is longer than this many seconds, a line says that more cores could be used."""
MOST_TESTED = 20_000
"""So many test examples show whether a model is better than guessing; draws of millions would take minutes and gigabytes."""
Execute = Callable[[Sequence[TrialJob]], Iterable[TrialResult]]
"""Runs trials, here or elsewhere, and gives their results in the order of the jobs."""


def run(
    config: Config,
    run_dir: str | Path | None = None,
    *,
    data: Prepared | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
    execute: Execute | None = None,
    place: Place | None = None,
) -> RunResult:
    """Train a portfolio and write its run folder.

    A finished run in the folder is not trained again. An unfinished run continues from its trials, and ends as if it had never
    been interrupted. `data` are the pooled data of the same configuration. `place` is where trials take place; `execute`
    replaces their training.
    """
    path = Path(run_dir) if run_dir is not None else default_run_dir(config, "run")

    def train(folder: RunFolder) -> RunResult:
        device = choose_device(config.device)
        pooled, where = pooled_data(config) if data is None else data, place or InThisProcess()
        return _Portfolio(config, pooled, device, folder, progress or Progress(), where, execute).run()

    if fresh or not (path / "result.json").exists():  # a finished run is not trained again, whatever it was allowed
        budget.allowed(config, choose_device(config.device))  # before a folder is made
    return trained_once(path, config, train, fresh=fresh)


def _steps(config: Config, data: Prepared) -> dict[str, int]:
    """The steps of each phase, from all labels."""
    guided = config.training.guided
    batches = {name: config.data.auxiliary[name].batch_size or guided.batch_size for name in data.auxiliary}
    names = phase_names(config)
    return {name: phase_steps(name, getattr(config.training, name), data, batches) for name in names}


class _Portfolio:
    """The trials of one portfolio, and what they decide."""

    def __init__(
        self,
        config: Config,
        data: Prepared,
        device: torch.device,
        folder: RunFolder,
        progress: Progress,
        place: Place,
        execute: Execute | None,
    ) -> None:
        self.handed, self.place = replace(data, names=None), place
        """The data as they were read, for trials in other processes."""
        data = on_device(data, device)
        self.data, self.device, self.folder, self.progress = data, device, folder, progress
        self.continues = any(folder.trials_path.glob(f"*/*/{RESULT}"))
        """Whether an earlier process left results of trials."""
        self.execute, self.jobs, self.expected = execute or self.placed, 0, 0
        self.folds: Folds = make_folds(data, config.portfolio, mix(config.seed, "folds"))
        targets = data.primary.examples.targets
        assert targets is not None
        self.rows = torch.from_numpy(self.folds.validated)
        held, folds = targets.cpu()[self.rows], self.folds.of[self.folds.validated]
        self.held_out = HeldOut(data.primary, held, folds, chosen_metric(config, data, None))
        self.held_out.check()
        self.entries = smaller_basis(candidates(config, data), self.folds.smallest)
        self.config = fitted(config, self.folds.smallest, _steps(config, data), config.training.threads)
        self.standings: dict[str, Standing] = {}
        self.chance: dict[str, Any] | None = None
        self.rungs: list[dict[str, Any]] = []
        self.peak = self.memory = 0

    def run(self) -> RunResult:
        self.folder.begin(self.data.record, self.device, threads_of(self.config, self.data))
        self.folder.truncate(0)  # the report of an unfinished run expects this file
        make_folder(self.folder.trials_path)
        plan, names = self.planned(), self.folds.not_validated
        rare = (
            f"these classes have too few examples to be held out and are used for training only: {listed(names)}"
            if names
            else ""
        )
        # A container or a batch system may allow fewer cores than the machine has.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        alone = plan.threads == self.place.at_once == 1 < cores and self.device.type == "cpu" and plan.seconds > LONG
        idle = ""
        if alone:
            cure = f"to train {cores} trials at a time, stop now and start again with --workers {cores}: finished trials are kept"
            idle = f"this uses one of {cores} cores; {cure}"
        rungs = len(budget.rung_counts(self.config))
        several = rungs > 1 and len(self.entries) > 1
        climbing = (
            f". Training has {rungs} rungs; after each but the last, only the best candidates and {PRIMARY_ONLY} go on"
            if several
            else ""
        )
        ranking = f"candidates are ranked by {ranking_words(self.held_out.metric)}" if len(self.entries) > 1 else ""
        again = " from the beginning" if self.continues else ""
        coming = f"{budget.forecast(plan, self.folds.count, self.place.at_once)}{again}{climbing}"
        names_mean = legend(to_dict(entry.strategy) for entry in self.entries)
        for words in (coming, ranking, names_mean, idle, plan.decided, rare):
            if words:
                self.progress.say(words)
        self.climb()
        return self.finish()

    def planned(self) -> Plan:
        """Plan what the budget allows; a continued run reads its earlier plan."""
        known = Plan.read(self.folder.path)
        if known is None:
            threads = threads_of(self.config, self.data)
            config = fitted(self.config, self.folds.smallest, phase_lengths(self.config), threads)
            costs = budget.measure(self.entries, config, fold_data(self.data, self.folds, 0), self.device)
            extra = may_sum(config, self.data)
            known = budget.plan(self.entries, config, self.folds.count, costs, self.device, sums=extra)
            known.write(self.folder.path)
        self.plan, self.entries = known, [entry for entry in self.entries if entry.label in known.candidates]
        self.config = fitted(self.config, self.folds.smallest, known.steps, known.threads)
        return known

    def climb(self) -> None:
        """Train rung by rung; after each but the last, the worst candidates stop."""
        steps, settings = look_steps(self.config), self.config.portfolio
        looks, alive = [count - 1 for count in budget.rung_counts(self.config)], list(self.entries)
        for number, look in enumerate(looks):
            self.begin(f"rung {number + 1} of {len(looks)}", "in this rung", alive)
            done, jobs = self.done(alive, steps[look]), len(alive) * self.folds.count
            self.say_done(number, done, jobs, len(alive) + (self.plan.sums and number == 0))
            self.train(alive, number, steps[look])
            if number == 0:
                self.chance = chance(self.standings, self.held_out, usual=_usual(settings, self.plan))
                extra = greedy_sum(self.config, lowest_losses(self.standings), self.data)
                if extra is not None:
                    alive.append(extra)
                    if done == jobs:  # the earlier process may have stopped in this sum
                        done, jobs = done + self.done([extra], steps[look]), jobs + self.folds.count
                        self.say_done(number, done, jobs, len(alive))
                    self.train([extra], number, steps[look])
            curves = {entry.label: self.standings[entry.label].curve for entry in alive}
            values = {label: curve.value for label, curve in curves.items() if curve is not None}
            if not values:
                why = next(iter(self.standings.values())).diverged
                raise InputError(f"every candidate of the portfolio diverged: {why}")
            keep = 1.0 if number == len(looks) - 1 else settings.rungs[number].keep
            order = survivors(values, keep, PRIMARY_ONLY)
            self.rungs.append({"look": look, "step": steps[look], "candidates": len(alive), "kept": order})
            self.say(number, len(looks), curves, steps[look] / steps[-1])
            alive = [entry for entry in alive if entry.label in order]
            for label in self.standings.keys() - {entry.label for entry in alive}:
                self.prune(label, stopped=True)

    def begin(self, stage: str, left: str, entries: Sequence[PortfolioCandidate]) -> None:
        """Show that a stage begins, in which all folds of these candidates are trained."""
        self.jobs, self.expected = 0, len(entries) * self.folds.count
        self.progress.stage(stage, left)

    def say(self, number: int, rungs: int, curves: Mapping[str, Curve | None], share: float) -> None:
        """Show a line about a rung that is over, with the best candidate's scores as the leaderboard would show them."""
        rung, last = self.rungs[-1], number == rungs - 1
        best, curve = rung["kept"][0], curves[rung["kept"][0]]
        assert curve is not None
        shown = f"out-of-fold {self.held_out.metric} {curve.scores[curve.best]:.4f}"
        score = f"{best} (ranking score {curve.value[0]:.4f}, {shown})"
        over = f"rung {number + 1} of {rungs} is over, after {share:.0%} of the steps"
        if last:
            self.progress.say(f"{over}; the best candidate is {score}")
        else:
            settled = (self.plan, len(rung["kept"]), self.folds.count, self.config, number + 1, self.place.at_once)
            many = f"{len(rung['kept'])} of {rung['candidates']} candidates go on"
            go_on = f"{many if rung['candidates'] > 1 else 'the only candidate goes on'} ({'; '.join(rung['kept'])})"
            left = f"about {budget.left(*settled)} left in all"
            self.progress.say(f"{over}; {go_on}; the best so far is {score}; {left}")
        if number == 0 and self.chance is not None:
            self.progress.say(chance_words(self.chance, "an early estimate, after rung 1"))

    def trials(self, entries: Sequence[PortfolioCandidate], until: int) -> list[TrialJob]:
        """All folds of some candidates up to a step."""
        keeps = self.config.portfolio.final == "ensemble" and self.config.portfolio.members == "folds"
        return [
            TrialJob(self.config, entry, fold, until, self.trial(entry.label, fold), keeps)
            for entry in entries
            for fold in range(self.folds.count)
        ]

    def done(self, entries: Sequence[PortfolioCandidate], until: int) -> int:
        """How many trials of some candidates are done before they are trained up to a step."""
        return sum(stored(job) is not None for job in self.trials(entries, until)) if self.continues else 0

    def say_done(self, rung: int, done: int, jobs: int, alive: int) -> None:
        """Say how many trials of a rung an earlier process finished, and how long everything else takes.

        Nothing is said about a rung that is finished, since the line about its end follows.
        """
        if 0 < done < jobs:
            said = f"continuing: {done} of {jobs} trials of rung {rung + 1} of {len(budget.rung_counts(self.config))} are done"
            left = budget.left(self.plan, alive, self.folds.count, self.config, rung, self.place.at_once, done)
            self.progress.say(f"{said}; about {left} left in all")

    def train(self, entries: Sequence[PortfolioCandidate], rung: int, until: int) -> None:
        """Train all folds of some candidates up to a step."""
        results = iter(self.execute(self.trials(entries, until)))
        for entry in entries:
            found = [next(results) for _ in range(self.folds.count)]
            diverged = next((result.diverged for result in found if result.diverged), None)
            looks = [torch.cat(parts) for parts in zip(*(result.outputs for result in found), strict=False)]
            curve = None if diverged else Curve.of(looks, self.held_out, second_phase(self.config))
            steps, seconds = max(result.steps for result in found), sum(result.seconds for result in found)
            # Other looks are never compared again; all of them (candidates x looks x labels x classes) would need much memory.
            counts = budget.rung_counts(self.config) if entry.label == PRIMARY_ONLY else [len(looks)]
            kept = {} if curve is None else {look: looks[look] for look in needed_looks(curve, counts)}
            self.standings[entry.label] = Standing(entry, rung + 1, steps, seconds, diverged, kept, curve)
            self.memory = max(self.memory, *(result.memory for result in found))
            self.prune(entry.label)

    def placed(self, jobs: Sequence[TrialJob]) -> Iterator[TrialResult]:
        """Run trials where they take place; yields each result as soon as all earlier ones are known.

        Trials that an earlier process finished are only read. They are counted first, so that they say nothing about the pace.
        """
        done = {job.folder for job in jobs if stored(job) is not None}
        self.jobs += len(jobs)
        self.progress.comparison(max(self.jobs, self.expected))
        self.progress.skipped(len(done))
        data = self.data if isinstance(self.place, InThisProcess) else self.handed
        threads, found, calls = self.config.training.threads or 1, dict[Path, TrialResult](), list[Job]()
        for job in (job for job in jobs if job.folder not in done):
            fold = "all labels" if job.fold is None else f"fold {job.fold + 1}"
            reads = files_read(job.config.model, job.config.seed)
            name = f"{job.candidate.label}, {fold}"
            calls.append(Job(name, trial_at, (job,), job.folder, data, reads, threads, job.config.device))
        results = iter(self.place.run(calls, self.progress))
        for job in jobs:
            if job.folder in done:
                known = stored(job)  # read again: all results at once would need much memory
                assert known is not None
                yield known
                continue
            while job.folder not in found:
                call, result = next(results)
                assert call.folder is not None
                found[call.folder] = result
            yield found.pop(job.folder)
        for _ in results:  # the place ends its work
            pass

    def trial(self, label: str, fold: int | None) -> Path:
        """The folder of a trial."""
        name = re.sub(r"[^\w.=-]+", "-", label)
        if name != label:  # sources `a-b` and `a + b` would share a folder
            name = f"{name[:60]}-{mix(label) % 16**8:08x}"
        return self.folder.trials_path / name / ("all" if fold is None else f"fold-{fold}")

    def prune(self, label: str, *, stopped: bool = False) -> None:
        """Remove what is not needed later: looks that cannot become the best, and the state of a stopped candidate."""
        self.peak = peak_size(self.folder)
        curve, last, keep = self.standings[label].curve, len(look_steps(self.config)), set[int]()
        if curve is not None:
            # The score of the last look is not final before the next one, over which it is smoothed.
            last = len(curve.scores) - 1
            keep = {curve.best} if stopped else {curve.best_of(last), last}
        for fold in range(self.folds.count):
            folder = self.trial(label, fold)
            if stopped:
                (folder / CHECKPOINT).unlink(missing_ok=True)
            # A run that continues after it was killed may already have later looks.
            for look in {*range(last + 1)} - keep:
                look_file(folder, look).unlink(missing_ok=True)

    def finish(self) -> RunResult:
        """Choose the winner, make the model, test it, and write all results."""
        made = None
        while made is None:
            winner, picks, scores = _chosen(self.standings, len(self.rungs), self.held_out, self.config.portfolio)
            made = self.members(picks)
        members, refits = made
        folder, lines = self.folder.path, refits[0].lines if len(refits) == 1 else []
        final.write_metrics(folder, self.config, lines, winner, self.held_out.metric)
        about = final.describe(folder, self.config, self.data, members, scores, self.held_out)
        about, tested = final.tested(folder, self.config, self.data, about, self.device)
        self.peak = peak_size(self.folder)
        names = None if self.data.names is None else [self.data.names[row] for row in self.rows.tolist()]
        found = self.leaderboard(winner.candidate.label, picks, scores, tested)
        standings, compared = [*self.standings.values()], dict[str, Tensor]()
        if found["worth"] is not None:
            best = self.standings[found["worth"]["best"]]
            compared = {PRIMARY_ONLY: like(self.standings[PRIMARY_ONLY], best), best.candidate.label: best.outputs}
        final.write_predictions(folder, standings, self.held_out, self.rows, scores, names, compared)
        cost = {"bytes": about.bytes or 0, "seconds_per_prediction": about.seconds or 0.0}
        found["model"] = {"members": len(members), **cost}
        for row in found["candidates"]:  # each alone is one network, and all are alike
            row |= {name: value / len(members) for name, value in cost.items()}
        write_json(folder / NAME, without_nan(found))
        trials = sum(s.steps for s in self.standings.values()) * self.folds.count
        phases = [_summary("trials", trials, sum(s.seconds for s in self.standings.values()))]
        phases += (
            [_summary("all labels", sum(r.steps for r in refits), sum(r.seconds for r in refits))] if refits else []
        )
        counts = {"train": len(self.folds.of), "validation": len(self.rows), "test": len(self.data.test)}
        return RunResult(
            strategy=self.config.strategy.name,
            seed=self.config.seed,
            metric=self.held_out.metric,
            validation=self.held_out.figures(scores),
            test={} if tested is None else self.of_test(tested).figures(tested),
            phases=phases,
            parameters=sum(p.numel() for p in new_model(self.config, self.data, self.device).parameters()),
            examples=counts | {f"auxiliary/{n}": len(task.examples) for n, task in self.data.auxiliary.items()},
            run_dir=folder,
        )

    def members(self, picks: Mapping[str, int]) -> tuple[list[Member], list[TrialResult]] | None:
        """Return the networks of the model, and the results of those that are trained on all labels.

        None if a candidate diverges on all labels: it is then out, and the choice has to be repeated.
        """
        settings, count = self.config.portfolio, range(self.folds.count)
        if settings.final == "ensemble" and settings.members == "folds":
            trials = {label: [self.trial(label, fold) for fold in count] for label in picks}
            return final.of_folds(self.folder.path, self.standings, picks, trials), []
        steps, jobs = look_steps(self.config), list[TrialJob]()
        for label in picks:
            standing = self.standings[label]
            assert standing.curve is not None
            until, where = steps[standing.curve.best], self.trial(label, None)
            jobs.append(TrialJob(self.config, standing.candidate, None, until, where))
        self.begin("final training", "", ())
        results = list(self.execute(jobs))
        self.memory = max(self.memory, *(result.memory for result in results))
        lost = {label: result.diverged for label, result in zip(picks, results, strict=True) if result.diverged}
        for label, why in lost.items():
            self.standings[label] = replace(self.standings[label], diverged=f"on all labels, {why}", curve=None)
            self.progress.say(f"{label} is dropped: in its final training on all labels, {why}")
        if lost:
            return None
        weights = {job.folder / WEIGHTS: float(picks[job.candidate.label]) for job in jobs}
        return final.refitted(self.folder.path, weights), results

    def of_test(self, scores: Tensor) -> HeldOut:
        """The test set, as one fold."""
        targets = self.data.test.targets
        assert targets is not None
        return HeldOut(self.data.primary, targets.cpu(), np.zeros(len(scores), dtype=np.int64), self.held_out.metric)

    def beats_guess(self, scores: Tensor) -> bool:
        """Whether the test set shows that the model is better than a guess."""
        held_out, seed = self.of_test(scores), mix(self.config.seed, "test")
        if len(scores) > MOST_TESTED:  # drawn at random: files are often sorted by class
            some = np.random.default_rng(seed).choice(len(scores), MOST_TESTED, replace=False)
            held_out = replace(held_out, targets=held_out.targets[some], folds=held_out.folds[some])
            scores = scores[some]
        return bool(guess(scores, Intervals(held_out, None, seed))["beaten"])

    def leaderboard(
        self, winner: str, picks: Mapping[str, int], scores: Tensor, tested: Tensor | None
    ) -> dict[str, Any]:
        settings, metric = self.config.portfolio, self.held_out.metric
        names = None if self.data.groups is None else [self.data.groups[row] for row in self.rows.tolist()]
        intervals = Intervals(self.held_out, names, mix(self.config.seed, "intervals"))
        standings = [*self.standings.values()]
        value = worth(standings, intervals)
        low, high = intervals.ends(intervals.scores(scores))
        own = {"score": self.held_out.figures(scores)[metric], "low": low, "high": high}
        guessed = guess(scores, intervals)
        if not guessed["beaten"] and tested is not None and names is None:
            guessed["beaten"] = self.beats_guess(tested)  # a large test set may show more than few labels
        return {
            "version": VERSION,
            "metric": metric,
            "seed": self.config.seed,
            "decision": decision(settings.final, winner, picks, value, metric, settings.members),
            "warning": guess_words(guessed, own["score"], metric, _cure(self.config, self.data)),
            "guess": guessed,
            "chance": self.chance,
            "worth": value,
            "final": {"kind": settings.final, "winner": winner, "picks": dict(picks), "out_of_fold": own},
            "tested": len(self.data.test) > 0,
            "labels": len(self.folds.of),
            "validated": len(self.rows),
            "not_validated": self.folds.not_validated,
            "folds": self.folds.count,
            "looks": [final.where(self.config, look) for look in range(len(look_steps(self.config)))],
            "rungs": self.rungs,
            "candidates": rows(standings, intervals, lambda look: final.where(self.config, look), picks),
            "plan": asdict(self.plan),
            "runs": spent_runs(standings, self.folds.count, sum(phase_lengths(self.config).values())),
            "peak_disk": self.peak,
            "peak_memory": max(self.memory, peak_memory()),
        }


def _cure(config: Config, data: Prepared) -> str:
    """Say what may help a model that is no better than guessing."""
    starts = config.model.weights is not None or (config.model.pretrained and find_model(config.model.name)[0].foreign)
    better = [] if starts else [f"model={name}" for name in pretrained(data.kind)]
    return f"A pretrained network may help: {' or '.join(better)}." if better else "More labels may help."


def _usual(settings: PortfolioConfig, plan: Plan) -> bool:
    """Whether the first rung is the one that the chance was calibrated on."""
    default = PortfolioConfig()
    same = (settings.rungs, settings.looks, settings.candidates) == (default.rungs, default.looks, default.candidates)
    return same and not plan.left_out


def _chosen(
    standings: Mapping[str, Standing], rungs: int, held_out: HeldOut, settings: PortfolioConfig
) -> tuple[Standing, dict[str, int], Tensor]:
    """Return the best candidate after all rungs, the number of picks of each, and the model's out-of-fold scores."""
    ends = [standing for standing in standings.values() if standing.rung == rungs]
    left = [standing for standing in ends if standing.curve is not None]
    if not left:
        raise InputError(f"the final training of every remaining candidate diverged: {ends[0].diverged}")
    winner = max(left, key=rank)
    if settings.final == "single":
        return winner, {winner.candidate.label: 1}, winner.outputs
    likely = {label: held_out.likely(s.outputs) for label, s in standings.items() if s.curve is not None}
    picks = greedy(likely, held_out, winner.candidate.label, settings.picks)
    return winner, picks, mixed(likely, picks, several=held_out.task.several)


def trial_at(here: Here, job: TrialJob) -> TrialResult:
    """Run a trial where it takes place."""
    return run_trial(replace(job, folder=here.folder), here.data, here.progress)


def peak_size(folder: RunFolder) -> int:
    """Return the largest size of a run folder so far, in bytes; a file keeps it for a run that is killed and continued."""
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


def spent_runs(standings: Sequence[Standing], folds: int, steps: int) -> float:
    """Return how many full runs the trials took together."""
    return sum(standing.steps for standing in standings) * folds / steps


def _summary(name: str, steps: int, seconds: float) -> PhaseSummary:
    return PhaseSummary(name=name, steps=steps, best_step=steps, seconds=seconds, stopped=None)
