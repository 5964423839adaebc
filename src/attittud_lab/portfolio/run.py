"""A whole portfolio: folds, simple candidates, networks, the choice, and a run folder that holds
everything about it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab import features
from attittud_lab.config.schema import Config, PortfolioConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError, listed
from attittud_lab.files import without_nan, write_json
from attittud_lab.models import find as find_model
from attittud_lab.models import pretrained
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import InThisProcess, Place
from attittud_lab.portfolio import budget, final, finetuned, words
from attittud_lab.portfolio.choose import HeldOut, greedy, mixed
from attittud_lab.portfolio.folds import make_folds
from attittud_lab.portfolio.intervals import Intervals, guess
from attittud_lab.portfolio.leaderboard import NAME, VERSION, chance, rows, worth
from attittud_lab.portfolio.networks import NETWORK, Networks, Setting, keeps_folds, without_names
from attittud_lab.portfolio.simple import SimpleCandidates, chosen_learners, few_threads
from attittud_lab.portfolio.standing import Standing, rank, scores_of, taking_part
from attittud_lab.portfolio.suspicious import suspicious
from attittud_lab.portfolio.translations import translations
from attittud_lab.portfolio.winner import choose_single
from attittud_lab.runs.folder import RunFolder, trained_once
from attittud_lab.runs.result import PhaseSummary, RunResult
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.train import chosen_metric, default_run_dir, load_data, read_again

MOST_TESTED = 20_000
"""So many test examples show whether a model is better than guessing; draws of more would take
minutes.
"""


def run(
    config: Config,
    run_dir: str | Path | None = None,
    *,
    data: Prepared | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
    place: Place | None = None,
    explain: bool = True,
) -> RunResult:
    """Train a portfolio and write its run folder.

    A finished run in the folder is not trained again. An unfinished run continues from its trials,
    and ends as if it had never been interrupted. `data` are the pooled data of the same
    configuration. `place` is where trials take place. Without `explain` nothing is written about
    what auxiliary labels mean and which look wrong, which is for people alone.
    """
    path = Path(run_dir or default_run_dir(config, "run"))

    def train(folder: RunFolder) -> RunResult:
        pooled = data or load_data(config, pooled=True)
        setting = make_setting(
            config, pooled, folder, progress or Progress(), place or InThisProcess()
        )
        return Portfolio(setting, explain=explain).run()

    # A finished run is not trained again, whatever it was allowed.
    if fresh or not (path / "result.json").exists():
        budget.allowed(config, choose_device(config.device))  # before a folder is made
    return trained_once(path, config, train, fresh=fresh)


def make_setting(
    config: Config, data: Prepared, folder: RunFolder, progress: Progress, place: Place
) -> Setting:
    """Divide pooled data into folds, and return what all candidates share; refuses labels on which
    the metric is not defined.
    """
    device = choose_device(config.device)
    moved = on_device(data, device)
    folds = make_folds(moved, config.portfolio, mix(config.seed, "folds"))
    targets = moved.primary.examples.targets
    assert targets is not None
    rows = folds.validated
    metric = chosen_metric(config, moved, None)
    held_out = HeldOut(moved.primary, targets.cpu()[rows], folds.fold_of[rows], metric)
    held_out.check()
    portable = without_names(data)
    return Setting(config, moved, portable, device, folder, folds, held_out, progress, place)


class Portfolio:
    """The candidates of one portfolio, and what their out-of-fold predictions decide."""

    def __init__(self, setting: Setting, *, explain: bool) -> None:
        self.setting = setting
        self.config = setting.config
        self.data = setting.data
        self.folder = setting.folder
        self.folds = setting.folds
        self.held_out = setting.held_out
        self.explain = explain
        self.rows = torch.from_numpy(self.folds.validated)
        """The numbers of the held-out examples, fold by fold."""
        self.learners = chosen_learners(self.config, self.data)
        self.simple = SimpleCandidates(setting, self.learners)
        self.networks: dict[str, Networks] = {}
        """The learners that train networks, by name."""
        self.chance: dict[str, Any] | None = None

    @property
    def standings(self) -> dict[str, Standing]:
        """All candidates that have been tried, by label."""
        standings = dict(self.simple.standings)
        for networks in self.networks.values():
            standings |= networks.standings
        return standings

    def run(self) -> RunResult:
        """Try all candidates, cheap ones first; then choose, train on all labels, and write."""
        # This may refuse the job, and a refused job leaves nothing in the folder.
        settings = self.network_settings()
        self.folder.begin(self.data.record, self.setting.device, self.config.training.threads)
        self.folder.truncate(0)  # the report of an unfinished run expects this file
        if self.folds.not_validated:
            self.setting.progress.say(words.rare(listed(self.folds.not_validated)))
        self.simple.run()
        self.train_networks(settings)
        # The chance was calibrated without networks, and with all candidates.
        usual = _usual(self.config.portfolio) and not self.networks and not self.simple.untried
        self.chance = chance([*self.standings.values()], self.held_out, usual=usual)
        if self.chance is not None:
            self.setting.progress.say(words.chance(self.chance))
        return self.finish()

    def train_networks(self, settings: Mapping[str, Setting]) -> None:
        """Train the networks of each learner, where the budget allows it and one can still win."""
        best = max(taking_part(self.simple.standings.values()), key=rank, default=None)
        reason = ""
        if best is not None and self.intervals().is_perfect(scores_of(best)):
            reason = words.cannot_win(best.label, self.held_out.metric)
        for name, setting in settings.items():
            if reason:
                self.simple.say(words.networks_skipped(name, reason))
                continue
            networks = Networks(
                setting,
                name,
                part=1 / len(settings),
                spent=self.simple.seconds,
                optional=best is not None,
            )
            networks.run()
            if networks.plan.candidates:
                self.networks[name] = networks
            else:
                too_few = words.too_few_steps(budget.SHORTEST)
                self.simple.say(words.networks_skipped(name, too_few))

    def network_settings(self) -> dict[str, Setting]:
        """Return the settings of the learners that train networks, by name.

        `network` trains on the data of the job. A pretrained network has a job of its own, for which
        texts are read again, because it has its own tokens.
        """
        settings = {}
        if NETWORK in self.learners:
            settings[NETWORK] = self.setting
        if finetuned.NAME not in self.learners:
            return settings
        for features_name, model in finetuned.pretrained_networks(self.config, self.data).items():
            job = finetuned.job_for(self.config, self.data, model)
            setting = replace(self.setting, config=job)
            if self.data.kind == "text":
                setting = self.setting.reading(job, read_again(job, self.data))
            settings[finetuned.learner_name(features_name)] = setting
        return settings

    # -------------------------------------------------------------------------------------- the end

    def finish(self) -> RunResult:
        """Choose, make the model, test it, and write all results."""
        intervals = self.intervals()
        # A candidate that diverges on all labels takes part no more, so this ends.
        while True:
            winner, picks, scores = self.choose(intervals)
            members = self.members(picks)
            if members is not None:
                break
        folder = self.folder.path
        networks = None
        if not winner.simple:
            networks = self.networks[winner.settings["learner"]]
        lines = members.lines.get(winner.label, [])
        final.write_metrics(folder, networks, lines, winner, self.held_out.metric)
        about = final.describe(folder, self.config, self.data, members, scores, self.held_out)
        about, tested = final.tested(folder, self.config, self.data, about, self.setting.device)
        board = self.leaderboard(winner.label, picks, scores, tested, intervals)
        board["model"] = {
            "members": len(members.files),
            "bytes": about.bytes or 0,
            "seconds_per_prediction": about.seconds or 0.0,
        }
        board["translations"] = []
        board["suspicious"] = []
        if self.explain:
            with few_threads():
                board["translations"] = translations(
                    self.simple, self.data.groups, self.config.seed
                )
                board["suspicious"] = suspicious(self.simple, self.data, folder)
        final.write_predictions(
            folder,
            [*self.standings.values()],
            self.held_out,
            self.rows,
            scores,
            self.of_held_out(self.data.names),
        )
        write_json(folder / NAME, without_nan(board))
        return self.result(members, scores, tested)

    def what_may_help(self) -> str:
        """Say what may help a model that is no better than guessing: features of a pretrained
        network or, if the job trains networks, a pretrained one; more labels if the job has these.
        """
        if self.simple.learners and any(map(features.trained_as, self.simple.problems)):
            return words.MORE_LABELS
        model = self.config.model
        if not self.networks:
            better = next(filter(features.trained_as, features.names(self.data.kind)), None)
            if better is None:
                return words.MORE_LABELS
            return words.features_may_help(better)
        is_pretrained = model.pretrained and find_model(model.name)[0].foreign
        networks = pretrained(self.data.kind)
        if model.weights is not None or is_pretrained or not networks:
            return words.MORE_LABELS
        return words.networks_may_help(networks)

    def intervals(self) -> Intervals:
        """Return draws of the held-out labels, of whole groups if there are any."""
        groups = self.of_held_out(self.data.groups)
        return Intervals(self.held_out, groups, mix(self.config.seed, "intervals"))

    def of_held_out(self, texts: Sequence[str] | None) -> list[str] | None:
        """Return the texts of held-out examples, from one text for each example, such as its group
        or name; None for None.
        """
        if texts is None:
            return None
        return [texts[row] for row in self.rows.tolist()]

    def choose(self, intervals: Intervals) -> tuple[Standing, dict[str, int], Tensor]:
        """Return the best candidate, how often each candidate is picked (those that are not picked
        are left out), and the model's out-of-fold scores, n x classes.
        """
        settings = self.config.portfolio
        standings = taking_part(self.standings.values())
        if all(standing.for_comparison for standing in self.standings.values()):
            raise InputError(
                "portfolio: no features fit into the time; raise portfolio.budget, or name other "
                "portfolio.features"
            )
        if not standings:
            why = next(iter(self.standings.values())).diverged
            raise InputError(f"the final training of every remaining candidate diverged: {why}")
        winner = choose_single(standings, intervals)
        if settings.final == "single":
            return winner, {winner.label: 1}, scores_of(winner)
        likely = {s.label: self.held_out.likely(scores_of(s)) for s in standings}
        picks = greedy(likely, self.held_out, winner.label, settings.picks)
        return winner, picks, mixed(likely, picks, several=self.held_out.task.several)

    def members(self, picks: Mapping[str, int]) -> final.Members | None:
        """Make the members of the model from the picked candidates, and write them.

        Returns None if one diverged on all labels: it is no candidate any more, and the choice has
        to be repeated.
        """
        members = final.Members(self.folder.path)
        for networks in self.networks.values():
            of_networks = _picks_among(picks, networks.standings)
            if not of_networks:
                continue
            if keeps_folds(self.config.portfolio):
                members.add_networks(networks, networks.picked_files(of_networks))
            else:
                results = networks.refit([*of_networks])
                if any(result.diverged for result in results.values()):
                    return None
                members.add_refitted(networks, of_networks, results)
        self.simple.add_members(members, _picks_among(picks, self.simple.standings))
        return members

    def of_test(self, scores: Tensor) -> HeldOut:
        """Return the test set as one fold; `scores` are the model's, one row for each example."""
        targets = self.data.test.targets
        assert targets is not None
        folds = np.zeros(len(scores), dtype=np.int64)
        return HeldOut(self.data.primary, targets.cpu(), folds, self.held_out.metric)

    def beats_guess(self, scores: Tensor) -> bool:
        """Whether the test set shows that the model, with these test scores, beats a guess."""
        held_out = self.of_test(scores)
        seed = mix(self.config.seed, "test")
        if len(scores) > MOST_TESTED:  # drawn at random: files are often sorted by class
            generator = np.random.default_rng(seed)
            some = generator.choice(len(scores), MOST_TESTED, replace=False)
            held_out = replace(held_out, targets=held_out.targets[some], folds=held_out.folds[some])
            scores = scores[some]
        return bool(guess(scores, Intervals(held_out, None, seed))["beaten"])

    def leaderboard(
        self,
        winner: str,
        picks: Mapping[str, int],
        scores: Tensor,
        tested: Tensor | None,
        intervals: Intervals,
    ) -> dict[str, Any]:
        """Return leaderboard.json without the size of the model and what labels mean.

        `scores` are the model's out-of-fold scores, and `tested` those for the test set, None
        without labelled test examples.
        """
        settings = self.config.portfolio
        metric = self.held_out.metric
        standings = [*self.standings.values()]
        gain = worth(standings, intervals)
        if gain is not None and self.simple.untried:
            gain["skipped"] = self.simple.untried
        low, high = intervals.ends(intervals.scores(scores))
        model = {"score": self.held_out.figures(scores)[metric], "low": low, "high": high}
        guessed = guess(scores, intervals)
        if not guessed["beaten"] and tested is not None and self.data.groups is None:
            # A large test set may show more than few labels.
            guessed["beaten"] = self.beats_guess(tested)
        table = rows(standings, intervals, picks)
        instead = next((row for row in table if row["without_us"]), None)
        of_folds = keeps_folds(settings) and not self.standings[winner].simple
        decision = words.decision(settings.final, winner, picks, gain, metric, of_folds=of_folds)
        return {
            "version": VERSION,
            "metric": metric,
            "seed": self.config.seed,
            "decision": decision,
            "without_us": words.without_us(instead, model, metric),
            "warning": words.guess(guessed, model["score"], metric, self.what_may_help()),
            "guess": guessed,
            "chance": self.chance,
            "worth": gain,
            "final": {
                "kind": settings.final,
                "winner": winner,
                "picks": dict(picks),
                "out_of_fold": model,
            },
            "tested": len(self.data.test) > 0,
            "labels": len(self.folds.fold_of),
            "validated": len(self.rows),
            "not_validated": self.folds.not_validated,
            "folds": self.folds.count,
            "candidates": table,
            "simple": self.simple.about(),
            "networks": {name: networks.about() for name, networks in self.networks.items()},
        }

    def result(self, members: final.Members, scores: Tensor, tested: Tensor | None) -> RunResult:
        """Return result.json. `scores` are out of fold; `tested` are test scores, if any."""
        trials = 0
        spent = 0.0
        for standing in self.standings.values():
            trials += standing.steps * self.folds.count
            spent += standing.seconds
        phases = [_phase("trials", trials, spent)]
        if members.steps or members.seconds:
            phases.append(_phase("all labels", members.steps, members.seconds))
        examples = {
            "train": len(self.folds.fold_of),
            "validation": len(self.rows),
            "test": len(self.data.test),
        }
        for name, task in self.data.auxiliary.items():
            examples[f"auxiliary/{name}"] = len(task.examples)
        test: dict[str, float] = {}
        if tested is not None:
            test = self.of_test(tested).figures(tested)
        return RunResult(
            strategy=self.config.strategy.name,
            seed=self.config.seed,
            metric=self.held_out.metric,
            validation=self.held_out.figures(scores),
            test=test,
            phases=phases,
            parameters=members.parameters,
            examples=examples,
            run_dir=self.folder.path,
        )


def _phase(name: str, steps: int, seconds: float) -> PhaseSummary:
    """Return the summary of a phase whose last step is its best."""
    return PhaseSummary(name=name, steps=steps, best_step=steps, seconds=seconds, stopped=None)


def _picks_among(picks: Mapping[str, int], labels: Container[str]) -> dict[str, int]:
    """Return the picks of the candidates with these labels."""
    return {label: count for label, count in picks.items() if label in labels}


def _usual(settings: PortfolioConfig) -> bool:
    """Whether the candidates are the default ones. The chance was calibrated on them and on
    `translated`, and held up without it on held-out pairs.
    """
    default = PortfolioConfig()
    names = ("features", "learners", "uses", "candidates")
    return all(getattr(settings, name) == getattr(default, name) for name in names)
