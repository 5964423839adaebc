"""The simple candidates of a portfolio: features x learner x use of the auxiliary data, tried on
the folds of the labels.

`run.py` calls this first. Each result is written to the folder of trials, so a run that was killed
continues.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from attittud_lab import features
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.features.base import FeatureMap
from attittud_lab.features.compute import compute, seconds_for
from attittud_lab.files import make_folder, read_json, write_atomically, write_json
from attittud_lab.learners import find_learner, learners
from attittud_lab.models.weights import save_weights
from attittud_lab.portfolio import budget, finetuned, words
from attittud_lab.portfolio.choose import Curve
from attittud_lab.portfolio.final import Members
from attittud_lab.portfolio.networks import NETWORK, Setting
from attittud_lab.portfolio.standing import Standing
from attittud_lab.runs.folder import load_checkpoint, save_checkpoint
from attittud_lab.runs.model import features_files
from attittud_lab.runs.result import typed
from attittud_lab.training.devices import single_thread
from attittud_lab.uses import find_use
from attittud_lab.uses.base import SourceModels
from attittud_lab.uses.candidates import LEARNERS, USES, default_candidates
from attittud_lab.uses.evaluate import Evaluation, evaluate, fit_final
from attittud_lab.uses.problem import Problem, SimpleCandidate
from attittud_lab.uses.read import joined_inputs, labelled_rows, problem_of

ALONE = "alone"
"""The use that is always tried."""
REFERENCE = "linear"
"""The learner that stands for what a user would have used instead, if a job names only networks."""
LEARNERS_OF_NETWORKS = (NETWORK, finetuned.NAME)
SHARE_FOR_FEATURES = 0.5
"""An encoder is skipped if its features would take more than this share of the budget, or more than
is left of it.
"""
WORTH_SAYING = 5.0
"""If features take more seconds than this, a line says so."""
FINISH = 1.7
"""After the last candidate a run fits its final model and looks for wrong labels; that took this
many times as long as the candidates of one kind of features.
"""


def chosen_learners(config: Config, data: Prepared) -> list[str]:
    """Return the names of the learners that a job tries."""
    names = config.portfolio.learners
    if names is None:
        return list(LEARNERS[data.kind])
    if not names:
        choices = ", ".join([*learners(), *LEARNERS_OF_NETWORKS])
        raise InputError(
            f"portfolio.learners: is empty, so nothing would be tried; name some of {choices}"
        )
    return list(dict.fromkeys(names))


def chosen_uses(config: Config) -> list[str]:
    """Return the names of the uses that a job tries every learner with. `alone` is always among
    them: all others are compared with it.
    """
    names = config.portfolio.uses
    if names is None:
        names = list(USES)
    return list(dict.fromkeys([ALONE, *names]))


@dataclass(frozen=True)
class Tried:
    """What the folds showed about a candidate, as its file has it."""

    outputs: Tensor
    """The scores of the held-out labels, fold by fold."""
    setting: dict[str, float]
    """What the folds chose."""
    temperature: float
    seconds: float


@contextmanager
def few_threads() -> Iterator[None]:
    """Compute with one thread inside the block: products are so small that several wait for each
    other.

    Two processes with two threads each took thirty seconds for a fit of one second.
    """
    with single_thread(), threadpool_limits(limits=1):
        yield


@dataclass
class Spent:
    """What the budget of time decided about simple candidates: a continued run reads it again."""

    features: dict[str, float] = field(default_factory=dict)
    """Seconds that features took."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Features and candidates that are not tried, by name, each with the line that says why."""

    @classmethod
    def read(cls, path: Path) -> Spent:
        if not path.exists():
            return cls()
        try:
            return cls(**typed(cls, read_json(path)))
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: is damaged ({error}); start over with --fresh") from None


class SimpleCandidates:
    """All simple candidates of a portfolio, with their out-of-fold results."""

    def __init__(self, setting: Setting, chosen: Sequence[str]) -> None:
        """`chosen` are the learners of the job; those that train networks are left out. If there
        are no others, a linear learner on the primary labels is tried for comparison.
        """
        self.setting = setting
        self.learners = [name for name in chosen if name not in LEARNERS_OF_NETWORKS]
        self.has_networks = len(self.learners) < len(chosen)
        """Whether the job also has learners that train networks."""
        self.seconds_of_fits: float | None = None
        """How long it took to fit all candidates on the features before; None for the first."""
        self.standings: dict[str, Standing] = {}
        self.candidates: dict[str, SimpleCandidate] = {}
        self.tried: dict[str, Tried] = {}
        """Candidates and what their folds showed, by label, as `standings`."""
        self.maps: dict[str, FeatureMap] = {}
        self.problems: dict[str, Problem] = {}
        """How examples become features, and all examples as these features, by their name."""
        self.source_models: dict[str, SourceModels] = {}
        """Models of the sources, by features."""
        self.seed = mix(setting.config.seed, "simple") % 2**32
        self.lines: list[str] = []
        """What was used, and what was not, in words."""
        self.limit = budget.allowed(setting.config, setting.device)
        """Seconds of the budget; None if there is no limit."""
        self.spent_path = setting.folder.trials_path / "simple" / "spent.json"
        self.spent = Spent.read(self.spent_path)
        self.untried = 0
        """Candidates with auxiliary data that the budget left no time for, beside others on the same
        features.
        """

    @property
    def seconds(self) -> float:
        """The time that all features and candidates so far took, in this process or an earlier
        one.
        """
        of_candidates = sum(tried.seconds for tried in self.tried.values())
        return of_candidates + sum(self.spent.features.values())

    def run(self) -> None:
        """Compute the features and try all candidates on them, cheap features first.

        There is always a candidate without auxiliary data. If the job has no simple learners, or no
        time for its features, it is one for comparison only.
        """
        kind = self.setting.data.kind
        choice = features.choose_features(kind, self.setting.config.portfolio.features or ())
        if self.learners:
            for line in choice.lines:
                self.say(line)
        # Cheap features that the job does not have come last. They are for networks to be compared
        # with, and needed only if nothing could be tried on the job's own features.
        names = list(dict.fromkeys([*choice.names, *features.cheap(kind)]))
        for name in names:
            of_job = name in choice.names
            if not of_job and (self.tried or not self.has_networks):
                break
            if self.is_skipped([name]):
                continue
            for_comparison = not (of_job and self.learners)
            problem = self.prepare(name, for_comparison=for_comparison)
            if problem is not None:
                self.problems[name] = problem
                began = time.perf_counter()
                with few_threads():
                    self.evaluate(name, problem, for_comparison=for_comparison)
                self.seconds_of_fits = time.perf_counter() - began

    def is_skipped(self, names: Sequence[str]) -> bool:
        """Whether these features or candidates are skipped, because the time is used up now, or was
        when an earlier process came to the first of them.

        The decision is kept, and a line says so. Nothing is skipped before something was tried.
        """
        if names[0] not in self.spent.skipped:
            if self.limit is None or not self.tried or self.seconds <= self.limit:
                return False
            self.skip(names, words.out_of_time(names, self.limit))
        line = self.spent.skipped[names[0]]
        if line not in self.lines:
            self.say(line)
        return True

    def skip(self, names: Sequence[str], line: str) -> None:
        """Keep the decision to skip features or candidates, for which `line` is the reason."""
        self.spent.skipped |= dict.fromkeys(names, line)
        if self.tried:  # else a job that is refused now would leave a file in its folder
            self.keep_spent()

    def keep_spent(self) -> None:
        """Write what the time decided, beside the results of candidates."""
        make_folder(self.spent_path.parent)
        write_json(self.spent_path, asdict(self.spent))

    def say(self, line: str) -> None:
        """Show a line now, and on the page later."""
        self.lines.append(line)
        self.setting.progress.say(line)

    # ------------------------------------------------------------------------------------- features

    def prepare(self, name: str, *, for_comparison: bool) -> Problem | None:
        """Compute one kind of features of all examples, and return the problem on them; None if
        that would take too long. A problem `for_comparison` has the primary examples alone.
        """
        data = self.setting.data
        feature_map = features.build(name, data.kind)
        rows = labelled_rows(data)
        if for_comparison:
            rows = {}
        inputs = joined_inputs(data, rows)
        cache = self.setting.config.cache / "features"
        device = str(self.setting.device)
        if feature_map.worth_keeping and not self.fits(feature_map, inputs, cache, device):
            return None
        began = time.perf_counter()
        feature_map.fit(inputs)
        threads: AbstractContextManager[None] = nullcontext()
        if feature_map.network is None:
            threads = few_threads()
        with threads:
            matrix = compute(feature_map, inputs, cache, device, self.setting.progress)
        self.spent.features.setdefault(name, time.perf_counter() - began)
        self.maps[name] = feature_map
        return problem_of(data, rows, matrix, aligned=True)

    def fits(self, feature_map: FeatureMap, rows: Any, cache: Path, device: str) -> bool:
        """Whether there is time to compute these features of `rows`, the inputs of all examples.

        If it takes long, a line says how long. If it takes too long, the features are skipped.
        """
        seconds = seconds_for(feature_map, rows, cache, device)
        limit = self.limit
        if limit is not None:
            most = min(SHARE_FOR_FEATURES * limit, limit - self.seconds)
            if seconds > most:
                line = words.features_skipped(feature_map.name, seconds, limit)
                self.skip([feature_map.name], line)
                self.say(line)
                return False
        if seconds > WORTH_SAYING:
            left = None
            if self.seconds_of_fits is not None and not self.has_networks:
                left = seconds + (1 + FINISH) * self.seconds_of_fits
            self.say(words.features_take(feature_map.name, seconds, left))
        return True

    # ----------------------------------------------------------------------------------- candidates

    def evaluate(self, name: str, problem: Problem, *, for_comparison: bool) -> None:
        """Try every learner with every use on these features, as long as the budget allows.

        Each result is written when it is there; results of an earlier process are only read. A
        problem `for_comparison` has a single candidate, the linear learner without auxiliary data.
        """
        setting = self.setting
        for use in setting.config.portfolio.uses or ():
            self.say_skipped(use, problem)
        for learner in self.learners:
            find_learner(learner)  # refuses an unknown name
        candidates = [SimpleCandidate(name, REFERENCE, ALONE)]
        if not for_comparison:
            uses = chosen_uses(setting.config)
            candidates = default_candidates(problem, name, self.learners, uses)
        finished = [candidate for candidate in candidates if self.file(candidate.label).is_file()]
        waiting = [candidate for candidate in candidates if candidate not in finished]
        setting.progress.phase(f"learners on {name}", len(candidates), len(finished))
        self.source_models[name] = SourceModels(problem.sources, self.seed)
        # A generator: it tries the next waiting candidate when it is asked for it.
        running = evaluate(problem, setting.folds.fold_of, waiting, self.seed)
        for number, candidate in enumerate(candidates):
            path = self.file(candidate.label)
            if candidate in finished:
                tried = Tried(**load_checkpoint(path))
            elif self.is_skipped([later.label for later in candidates[number:]]):
                self.untried += sum(bool(later.sources) for later in candidates[number:])
                break  # this candidate and all later ones are skipped
            else:
                tried = self.result(next(running))
                self.keep_spent()
                save_checkpoint(path, vars(tried))
                setting.progress.advance(1, {})
            self.add(candidate, tried, for_comparison=for_comparison)
            standing = self.standings[candidate.label]
            setting.progress.say(words.standing_line(standing, setting.held_out.metric))

    def say_skipped(self, use: str, problem: Problem) -> None:
        """Say which sources a use that the job names cannot take, each line once."""
        for source in problem.sources.values():
            objection = find_use(use).objection(problem, [source])
            if objection is not None:
                line = words.use_skipped(use, objection)
                if line not in self.lines:
                    self.say(line)

    def result(self, evaluation: Evaluation) -> Tried:
        """Return what the folds showed, with the outputs for held-out examples, fold by fold."""
        outputs = torch.from_numpy(evaluation.outputs[self.setting.folds.validated]).float()
        setting = dict(evaluation.setting)
        return Tried(outputs, setting, evaluation.temperature, evaluation.seconds)

    def add(self, candidate: SimpleCandidate, tried: Tried, *, for_comparison: bool) -> None:
        """Add a candidate with its out-of-fold scores."""
        about = {
            "features": candidate.features,
            "learner": candidate.learner,
            "use": candidate.use,
            "sources": list(candidate.sources),
            "setting": tried.setting,
        }
        self.candidates[candidate.label] = candidate
        self.tried[candidate.label] = tried
        self.standings[candidate.label] = Standing(
            candidate.label,
            about,
            alone=not candidate.sources,
            seconds=tried.seconds,
            outputs=tried.outputs,
            curve=Curve.of([tried.outputs], self.setting.held_out),
            for_comparison=for_comparison,
        )

    def file(self, label: str) -> Path:
        """The file of a candidate's result."""
        name = f"{mix(label) % 16**12:012x}.safetensors"
        return self.setting.folder.trials_path / "simple" / name

    # ---------------------------------------------------------------------------------- final model

    def add_members(self, members: Members, picks: Mapping[str, int]) -> None:
        """Fit the picked candidates on all labels, and write them with their features."""
        for label, count in picks.items():
            began = time.monotonic()
            candidate = self.candidates[label]
            tried = self.tried[label]
            with few_threads():
                model = fit_final(
                    self.problems[candidate.features],
                    candidate,
                    tried.setting,
                    tried.temperature,
                    self.seed,
                    self.source_models[candidate.features],
                )
            members.add_simple(
                model.plain(),
                model.tensors(),
                file_name(candidate.features),
                share=float(count),
                seconds=time.monotonic() - began,
            )
        for name in dict.fromkeys(self.candidates[label].features for label in picks):
            self.write_features(name, members.folder)

    def write_features(self, name: str, folder: Path) -> None:
        """Write how examples become these features."""
        feature_map = self.maps[name]
        about, arrays = features_files(file_name(name))
        plain = {"name": name, "settings": feature_map.stored()}
        write_atomically(folder / about, json.dumps(plain).encode())
        save_weights(folder / arrays, feature_map.tensors())

    def about(self) -> dict[str, Any]:
        """What leaderboard.json says about simple candidates as a whole, and what was skipped."""
        return {"features": list(self.problems), "lines": self.lines}


def file_name(features_name: str) -> str:
    """Return the name of features as a part of a file name: hf:FOLDER has letters that no file may
    have.
    """
    safe = re.sub(r"[\W_]", "-", features_name)
    if safe == features_name:
        return safe
    return f"{safe[-40:]}-{mix(features_name) % 16**8:08x}"
