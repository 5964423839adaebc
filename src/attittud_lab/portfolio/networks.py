"""The candidates of a portfolio that train networks: a plan that the time allows, one trial for
each fold of each candidate, and the weights of the chosen ones.

`run.py` calls this after the simple candidates, if `portfolio.learners` asks for networks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch

from attittud_lab.config.schema import Config, PortfolioConfig, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.files import remove
from attittud_lab.models.build import files_read
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, InThisProcess, Job, Place
from attittud_lab.placing.trials import Trial, results_of
from attittud_lab.portfolio import budget, words
from attittud_lab.portfolio.budget import Plan
from attittud_lab.portfolio.candidates import (
    PortfolioCandidate,
    candidates,
    config_for,
    data_for,
    fitted,
    smaller_basis,
)
from attittud_lab.portfolio.choose import Curve, HeldOut
from attittud_lab.portfolio.folds import Folds, fold_data
from attittud_lab.portfolio.standing import Standing
from attittud_lab.portfolio.trial import (
    TrialJob,
    TrialResult,
    finished,
    look_file,
    look_steps,
    phase_lengths,
    run_trial,
    second_phase,
    stored,
)
from attittud_lab.runs.folder import RunFolder
from attittud_lab.training.devices import on_device
from attittud_lab.training.train import steps_of_phases, threads_of

NETWORK = "network"
"""The name of the learner that trains the network of `model:`."""
LONG = 60.0
"""If the forecast is longer than this many seconds, a line says that more cores could be used."""


@dataclass(frozen=True)
class Setting:
    """What all trials of a learner have in common."""

    config: Config
    data: Prepared
    """On the device that trains."""
    portable: Prepared
    """The same data in main memory and without names, for trials in other processes."""
    device: torch.device
    folder: RunFolder
    folds: Folds
    held_out: HeldOut
    progress: Progress
    place: Place

    def reading(self, config: Config, data: Prepared) -> Setting:
        """Return the setting of another job, with the `data` that were read for it."""
        moved = on_device(data, self.device)
        return replace(self, config=config, data=moved, portable=without_names(data))


def without_names(data: Prepared) -> Prepared:
    """Return the data for other processes: no trial needs the names of examples, and open sources
    cannot be handed over.
    """
    return replace(data, names=None, parts=None)


class Networks:
    """The candidates of one learner that train a network, and what their trials showed."""

    def __init__(
        self,
        setting: Setting,
        learner: str,
        *,
        part: float,
        spent: float = 0.0,
        optional: bool = False,
    ) -> None:
        """Build the candidates.

        The budget of time is that of the job without the seconds `spent` on simple candidates;
        `part` of it, from 0 to 1, is for this learner. Networks are `optional` if simple candidates
        can make the model.
        """
        self.setting = setting
        self.learner = learner
        """Its name in tables."""
        self.part = part
        self.spent = spent
        self.optional = optional
        entries = candidates(setting.config, setting.data)
        if learner != NETWORK:
            entries = [replace(entry, label=f"{learner}, {entry.label}") for entry in entries]
        self.entries = smaller_basis(entries, setting.folds.smallest)
        steps = steps_of_phases(setting.config, setting.data)
        threads = setting.config.training.threads
        self.config = fitted(setting.config, setting.folds.smallest, steps, threads)
        self.standings: dict[str, Standing] = {}

    def run(self) -> None:
        """Plan, say what will happen, and train every candidate on every fold, unless the plan has
        none.
        """
        setting = self.setting
        self.plan = self.planned()
        if not self.plan.candidates:
            return
        at_once = setting.place.at_once
        lines = [
            words.coming(self.plan, setting.folds.count, at_once, self.learner),
            words.legend(to_dict(entry.strategy) for entry in self.entries),
        ]
        cores = usable_cores()
        one_core_used = self.plan.threads == at_once == 1
        on_cpu = setting.device.type == "cpu"
        if on_cpu and one_core_used and cores > 1 and self.plan.seconds > LONG:
            lines.append(words.idle_cores(cores))
        lines.append(self.plan.decided)
        for line in filter(None, lines):
            setting.progress.say(line)
        self.train()

    def planned(self) -> Plan:
        """Return what the budget allows, and keep only the planned candidates, steps and threads.

        The plan is made from times on the first fold, and written; a continued run reads it.
        """
        setting = self.setting
        path = setting.folder.path / plan_file(self.learner)
        plan = Plan.read(path)
        if plan is None:
            fold = fold_data(setting.data, setting.folds, 0)
            threads = self.threads_on(fold)
            lengths = phase_lengths(self.config)
            config = fitted(self.config, setting.folds.smallest, lengths, threads)
            limit = budget.allowed(config, setting.device, self.part, self.spent)
            least = budget.FEWEST
            if self.optional:
                least = 1
            began = time.monotonic()
            timed = budget.measure(self.entries, config, fold, limit, least)
            if limit is not None:
                limit = max(0.0, limit - (time.monotonic() - began))
            plan = budget.plan(
                self.entries,
                config,
                setting.folds.count,
                timed,
                limit,
                optional=self.optional,
            )
            plan.write(path)
        setting.folder.note("threads", plan.threads)
        self.entries = [entry for entry in self.entries if entry.label in plan.candidates]
        self.config = fitted(self.config, setting.folds.smallest, plan.steps, plan.threads)
        return plan

    def threads_on(self, fold: Prepared) -> int:
        """Return how many threads all trials use, as measured on steps of one candidate.

        The first candidate is primary_only; the second one, if there is any, uses auxiliary data.
        """
        entry = self.entries[min(1, len(self.entries) - 1)]
        return threads_of(config_for(entry, self.config, self.config.seed), data_for(entry, fold))

    # --------------------------------------------------------------------------------------- trials

    def train(self) -> None:
        """Train all candidates on all folds, and put what they showed into `standings`.

        Weights that no ensemble needs are removed. If all candidates diverged, this is an error.
        """
        setting = self.setting
        setting.progress.stage(self.learner)
        jobs = self.trials()
        results = self.results(jobs)
        for entry in self.entries:  # results come candidate by candidate, and fold by fold
            standing = self.standing(entry, list(islice(results, setting.folds.count)))
            self.standings[entry.label] = standing
            self.prune(entry.label)
            setting.progress.say(words.standing_line(standing, setting.held_out.metric))
        for _ in results:  # nothing is left to read, but the generator ends the work of the place
            pass
        if all(standing.curve is None for standing in self.standings.values()):
            why = next(iter(self.standings.values())).diverged
            raise InputError(f"every network of the portfolio diverged: {why}")

    def trials(self) -> list[TrialJob]:
        """Return the jobs of all trials: candidate by candidate, and fold by fold."""
        until = look_steps(self.config)[-1]
        keeps = keeps_folds(self.config.portfolio)
        jobs = []
        for entry, fold in product(self.entries, range(self.setting.folds.count)):
            folder = self.trial_folder(entry.label, fold)
            jobs.append(TrialJob(self.config, entry, fold, until, folder, keeps))
        return jobs

    def results(self, jobs: Sequence[TrialJob]) -> Iterator[TrialResult]:
        """Return the results of trials in the order of `jobs`; finished trials are only read."""
        setting = self.setting
        trials = []
        for job in jobs:
            read = partial(stored, job)
            trials.append(Trial(job.folder, finished(job), read, partial(self.call, job)))
        setting.progress.comparison(len(trials))
        earlier = sum(trial.finished for trial in trials)
        if earlier:
            setting.progress.say(words.continuing(earlier, len(trials)))
        return results_of(trials, setting.place, setting.progress)

    def call(self, job: TrialJob) -> Job:
        """Describe a trial to the place that runs it: what it calls, with which data."""
        setting = self.setting
        data = setting.portable
        if isinstance(setting.place, InThisProcess):
            data = setting.data
        part = "all labels"
        if job.fold is not None:
            part = f"fold {job.fold + 1}"
        return Job(
            f"{job.candidate.label}, {part}",
            trial_at,
            (job,),
            folder=job.folder,
            data=data,
            reads=files_read(job.config.model, job.config.seed),
            threads=self.config.training.threads or 1,
            device=job.config.device,
        )

    def standing(self, entry: PortfolioCandidate, trials: Sequence[TrialResult]) -> Standing:
        """Return what the trials of a candidate, one for each fold, show together."""
        diverged = next((trial.diverged for trial in trials if trial.diverged), None)
        curve = None
        outputs = None
        best: dict[str, Any] = {}
        if diverged is None:
            outputs_of_folds = (trial.outputs for trial in trials)
            # For each look, the outputs of all held-out examples, fold by fold.
            looks = list(map(torch.cat, zip(*outputs_of_folds, strict=True)))
            curve = Curve.of(looks, self.setting.held_out, second_phase(self.config))
            # The outputs of all looks of all candidates would need much memory.
            outputs = looks[curve.best]
            best = {"look": curve.best, **self.phase_and_step(curve.best)}
        return Standing(
            entry.label,
            {"learner": self.learner, **to_dict(entry.strategy)},
            alone=entry.alone,
            network=entry,
            steps=max(trial.steps for trial in trials),
            seconds=sum(trial.seconds for trial in trials),
            diverged=diverged,
            outputs=outputs,
            curve=curve,
            best=best,
        )

    def phase_and_step(self, look: int) -> dict[str, Any]:
        """Return the phase of a look and its step, which is counted within the phase."""
        step = look_steps(self.config)[look]  # counted over all phases
        lengths = phase_lengths(self.config)
        first, *later = lengths  # names: there are one or two phases
        if later and step > lengths[first]:
            return {"phase": later[0], "step": step - lengths[first]}
        return {"phase": first, "step": step}

    def about(self) -> dict[str, Any]:
        """Return what leaderboard.json says about the plan."""
        looks = range(len(look_steps(self.config)))
        return {"looks": list(map(self.phase_and_step, looks)), "plan": asdict(self.plan)}

    def trial_folder(self, label: str, fold: int | None) -> Path:
        """Return the folder of a trial; `fold` None is the training on all labels."""
        name = "all"
        if fold is not None:
            name = f"fold-{fold}"
        return self.setting.folder.trials_path / safe_name(label) / name

    def prune(self, label: str) -> None:
        """Remove the weights of all looks of a candidate but the best one; all, if it diverged."""
        looks = set(range(len(look_steps(self.config))))
        curve = self.standings[label].curve
        if curve is not None:
            looks.remove(curve.best)
        for fold, look in product(range(self.setting.folds.count), looks):
            remove(look_file(self.trial_folder(label, fold), look))

    # ---------------------------------------------------------------------------------- final model

    def picked_files(self, picks: Mapping[str, int]) -> dict[Path, float]:
        """Return the files of the networks that replace the picked candidates in an ensemble, and
        how many picks each stands for.

        A candidate has one network for each fold, as it was after the candidate's best look. Its
        picks are divided equally among them, so the numbers add up to all picks, not to 1.
        """
        folds = self.setting.folds.count
        picks_by_file = {}
        for label, count in picks.items():
            curve = self.standings[label].curve
            assert curve is not None
            for fold in range(folds):
                file = look_file(self.trial_folder(label, fold), curve.best)
                picks_by_file[file] = count / folds
        return picks_by_file

    def refit(self, labels: Sequence[str]) -> dict[str, TrialResult]:
        """Train candidates on all labels up to their best step, and return the results by label.

        A candidate that diverges is marked so in `standings`, and cannot be chosen again.
        """
        steps = look_steps(self.config)
        jobs = []
        for label in labels:
            standing = self.standings[label]
            assert standing.curve is not None and standing.network is not None
            until = steps[standing.curve.best]
            folder = self.trial_folder(label, None)
            jobs.append(TrialJob(self.config, standing.network, None, until, folder))
        self.setting.progress.stage("final training")
        results = dict(zip(labels, self.results(jobs), strict=True))
        for label, result in results.items():
            if result.diverged:
                why = f"on all labels, {result.diverged}"
                self.standings[label] = replace(self.standings[label], diverged=why, curve=None)
                self.setting.progress.say(words.dropped(label, why))
        return results


def usable_cores() -> int:
    """Return how many cores this process may use: a container or a batch system may allow fewer
    than the machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keeps_folds(settings: PortfolioConfig) -> bool:
    """Whether the model has the networks of the folds, so that none is trained on all labels."""
    return settings.final == "ensemble" and settings.members == "folds"


def plan_file(learner: str) -> str:
    """Return the name of the file with a learner's plan in the run folder."""
    if learner == NETWORK:
        return "plan.json"
    return f"plan-{safe_name(learner)}.json"


def safe_name(label: str) -> str:
    """Return a name for files: labels have letters that no file may have.

    A changed name ends in a hash of the label, because `a-b` and `a + b` would share a file.
    """
    name = re.sub(r"[^\w.=-]+", "-", label)
    if name == label:
        return name
    return f"{name[:60]}-{mix(label) % 16**8:08x}"


def trial_at(here: Here, job: TrialJob) -> TrialResult:
    """Run a trial in the process, on the data and in the folder of the place that took the job."""
    return run_trial(replace(job, folder=here.folder), here.data, here.progress)
