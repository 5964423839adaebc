"""Train every candidate of a wide set to the end and keep all predictions: `python -m experiments.portfolio.every`.

For development pairs only, whose test labels may be looked at. `policies.py` then computes what any portfolio of these
candidates would have chosen and reached, without training. A candidate is trained by the product's own trials on all folds,
and on all labels with a look wherever a fold has one. A file holds a group of candidates of one pair and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.files import write_atomically
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio import trial as product
from attittud_lab.portfolio.budget import rung_look
from attittud_lab.portfolio.candidates import candidates, fitted, smaller_basis
from attittud_lab.portfolio.choose import Curve, HeldOut
from attittud_lab.portfolio.folds import make_folds
from attittud_lab.training.devices import choose_device
from attittud_lab.training.evaluate import figures, outputs_of
from attittud_lab.training.phase import DivergedError
from attittud_lab.training.train import chosen_metric, conditions

from .prepare import DEVELOPMENT, FILES
from .record import header
from .rows import CONTROL_WEIGHTS, GUIDED, ONE_THREAD, REFERENCES, UNLIMITED, Task, multitask, usual
from .unit import QUICK, RowMaker, Unit

spread = import_module("experiments.never-regret.__main__").spread
SHARED_MEMORY = Path("/dev/shm")
OUT = Path("runs/portfolio/every")
ABOUT = "about.json"
REFERENCE, SHARED, PHASES, USUAL = "reference", "shared", "phases", "usual"
ENDS = (0.14, 0.2, 0.34, 0.5, 0.67)
"""Shares of the steps after which rungs may lie: predictions of their best looks are kept."""
THEN = ", then primary"
"""The end of the label of a candidate whose second half of the steps is primary_only."""


def _own(name: str, weight: float = 1.0) -> dict[str, Any]:
    return {"name": name, "auxiliary_weight": weight, "head": "own"}


def _plain(task: Task, name: str) -> dict[str, Any]:
    return multitask(task) | {"name": name}


def _alone(task: Task) -> list[dict[str, Any]]:
    return [multitask(task, sources=[name]) for name in task.sources if len(task.sources) > 1]


WANTED: dict[str, Callable[[Task], list[dict[str, Any]]]] = {
    "drop_harmful": lambda t: [_plain(t, "drop_harmful"), *([_own("drop_harmful")] if t.shares else [])],
    "guided": lambda t: [_plain(t, name) for name in GUIDED if name != "drop_harmful"],
    SHARED: lambda t: [multitask(t, weight) for weight in CONTROL_WEIGHTS[4][:3]],
    "weights": lambda t: [multitask(t, w) for w in CONTROL_WEIGHTS[6 if t.shares else 4] if w in (0.2, 2.0, 4.0)],
    "alone": lambda t: [_plain(t, "pretrain"), *_alone(t)],
    "own": lambda t: [_own("multitask", weight) for weight in (0.4, 1.0)] if t.shares else [],
    "own_more": lambda t: [_own("multitask", 4.0), _own("pretrain")] if t.shares else [],
    PHASES: lambda t: [multitask(t), _plain(t, "pretrain"), *([_own("pretrain")] if t.shares else [])],
    USUAL: usual,
}
"""Candidates in addition to primary_only, which is in the groups `shared` and `usual`. The latter has the default candidates
alone and is not in the wide set. Those of `phases` train on the primary labels alone in the second half of their steps, which
the product can do for a whole job."""


@dataclass(frozen=True)
class Part:
    """The work of one process: a group of candidates of one pair and seed."""

    pair: str
    job: Path
    seed: int
    group: str
    out: Path
    scratch: Path | None = None
    quick: bool = False

    @property
    def path(self) -> Path:
        return self.out / f"{self.pair}.{self.seed}.{self.group}.npz"


class LookedAt(product._Trial):
    """A trial that predicts the test set at every look, also when it trains on all labels."""

    def __init__(self, job: product.TrialJob, data: Prepared) -> None:
        super().__init__(job, data, choose_device(job.config.device), Progress())
        self.tested = list[Tensor]()
        for phase, start in zip(self.phases, self.starts, strict=True):
            phase.looks = {step - start for step in product.look_steps(self.config)}

    def look(self) -> dict[str, float]:
        test = self.data.test
        assert test.targets is not None
        self.tested.append(outputs_of(self.model, test, self.device, head="primary"))
        return figures(self.data.primary, self.tested[-1], test.targets) if self.job.fold is None else super().look()

    def save(self) -> None:
        """Nothing goes on from here."""


def trained(job: product.TrialJob, data: Prepared) -> LookedAt:
    """A trial to the end; `run_trial` without files."""
    with conditions(job.config, data, choose_device(job.config.device)):
        found = LookedAt(job, data)
        try:
            found.run()
        except DivergedError as error:
            found.diverged = str(error)
    return found


def in_phases(config: Config) -> Config:
    """The job with half of its steps for a phase on the primary labels alone."""
    guided = config.training.guided
    half = replace(guided, steps=guided.steps // 2, warmup=guided.warmup // 2)
    rest = replace(half, steps=guided.steps - half.steps)
    return replace(config, training=replace(config.training, mode="two_phase", guided=half, finetune=rest))


class Table:
    """The arrays of one file. Outputs are kept without the last class (logits relative to it), test probabilities in 8 bits."""

    def __init__(self, config: Config, data: Prepared, group: str) -> None:
        self.data, folds = data, make_folds(data, config.portfolio, mix(config.seed, "folds"))
        self.count, rows = folds.count, torch.from_numpy(folds.validated)
        targets, tested = data.primary.examples.targets, data.test.targets
        assert targets is not None and tested is not None
        held = targets[rows]
        metric = chosen_metric(config, data, held)
        self.held_out = HeldOut(data.primary, held, folds.of[folds.validated], metric)
        config = fitted(config, folds.smallest, product.phase_lengths(config), 1)
        self.config = in_phases(config) if group == PHASES else config
        self.entries = smaller_basis(candidates(config, data), folds.smallest)
        if group not in (SHARED, USUAL):
            self.entries = self.entries[1:]
        self.arrays: dict[str, Any] = {
            "targets": held.numpy(),
            "folds": self.held_out.folds,
            "test": tested.numpy(),
            "steps": np.array(product.look_steps(self.config)),
            "second": np.array(product.second_phase(self.config)),
        }
        self.about = {"metric": metric, "classes": list(data.primary.classes), "sharing": task_of(config).shares}
        self.rows: list[dict[str, Any]] = []

    def add(self, number: int, label: str, trials: Sequence[LookedAt], refit: LookedAt) -> None:
        """Everything about one candidate."""
        held, about = self.held_out, dict[str, Any](label=label)
        parts = zip(*(trial.outputs for trial in trials), strict=False)
        looks = [*takewhile(lambda outputs: bool(outputs.isfinite().all()), map(torch.cat, parts))]
        curve = Curve.of(looks, held, product.second_phase(self.config))
        means = [
            np.mean([held.likely(part) for part in parts], 0)
            for parts in zip(*(trial.tested for trial in trials), strict=False)
        ]
        finals = [held.likely(part) for part in refit.tested]
        about |= {"seconds": [t.result().seconds for t in (*trials, refit)]}
        about |= {"diverged": [t.diverged for t in (*trials, refit)]}
        about |= {"kept": wanted_looks(curve, {rung_look(self.config, at) + 1 for at in ENDS})}
        singles = [[self.accuracy(part.numpy()) for part in trial.tested[: len(looks)]] for trial in trials]
        self.arrays |= {
            f"{number}/scores": np.array(curve.scores),
            f"{number}/losses": np.array(curve.losses),
            f"{number}/accuracy_folds": np.array(singles),
            f"{number}/accuracy_mean": np.array([self.accuracy(x) for x in means[: len(looks)]]),
            f"{number}/accuracy_refit": np.array([self.accuracy(x) for x in finals]),
            f"{number}/outputs": np.array([self.packed(looks[look]) for look in about["kept"]]),
            f"{number}/mean": np.array([self.eighth(means[look]) for look in about["kept"]]),
            f"{number}/refit": np.array([self.eighth(finals[look]) for look in about["kept"] if look < len(finals)]),
        }
        self.rows.append(about)

    def accuracy(self, likely: np.ndarray) -> float:
        targets = self.arrays["test"]
        return float(100 * (likely.argmax(1) == targets).mean())

    def packed(self, outputs: Tensor) -> np.ndarray:
        return (outputs[:, :-1] - outputs[:, -1:]).numpy().astype(np.float16)

    def eighth(self, likely: np.ndarray) -> np.ndarray:
        return np.asarray(np.rint(255 * likely[:, :-1]).astype(np.uint8))


def task_of(config: Config) -> Task:
    sources = config.data.auxiliary
    return Task(tuple(sources), any(source.share_head for source in sources.values()))


def wanted_looks(curve: Curve, ends: set[int]) -> list[int]:
    """The looks that are best if training ends after one of so many looks; in the end also the last, and that of lowest loss."""
    count, found = len(curve.scores), set[int]()
    for end in {*ends, count}:
        if 0 < end <= count:
            found.add(curve.first(end).best)
    if count:
        found |= {count - 1, max(range(count), key=lambda look: curve.smoothed[look][1])}
    return sorted(found)


def work(part: Part) -> tuple[str, float, str]:
    """Write the file of a part; returns its name, processor seconds, and what went wrong: other parts must not wait for it."""
    torch.set_num_threads(1)
    began, wrong = time.process_time(), ""
    part.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="every-", dir=part.scratch) as place:
        try:
            (refer if part.group == REFERENCE else train)(part, Path(place))
        except Exception:
            wrong = traceback.format_exc()
    return part.path.name, spent(began), wrong


def row_maker(part: Part, place: Path) -> RowMaker:
    return RowMaker(Unit(part.pair, part.job, part.seed, (), part.path, quick=part.quick), place)


def refer(part: Part, place: Path) -> None:
    """Reference (a): the rows of the suite."""
    maker = row_maker(part, place)
    write(part.path, {row: maker.make(row) for row in REFERENCES}, {})


def train(part: Part, place: Path) -> None:
    """All candidates of a group, one after the other."""
    began = time.process_time()
    wanted = json.dumps(WANTED[part.group](row_maker(part, place).task))
    settings = [f"seed={part.seed}", "strategy=portfolio", ONE_THREAD, f"portfolio.budget={UNLIMITED}"]
    config = load(part.job, [*settings, f"portfolio.candidates={wanted}", *(QUICK if part.quick else ())])
    data = product.pooled_data(config)
    table = Table(config, data, part.group)
    last = product.look_steps(table.config)[-1]
    for number, entry in enumerate(table.entries):
        jobs = [product.TrialJob(table.config, entry, fold, last, place) for fold in (*range(table.count), None)]
        *trials, refit = (trained(job, data) for job in jobs)
        table.add(number, entry.label + (THEN if part.group == PHASES else ""), trials, refit)
    write(part.path, {**table.about, "candidates": table.rows, "spent": spent(began)}, table.arrays)


def write(path: Path, about: dict[str, Any], arrays: dict[str, Any]) -> None:
    stream = BytesIO()
    np.savez_compressed(stream, about=np.array(json.dumps(about)), **arrays)
    write_atomically(path, stream.getvalue())


def spent(began: float) -> float:
    return round(time.process_time() - began, 2)


def parts(given: argparse.Namespace, jobs: dict[str, Path]) -> list[Part]:
    """Seed by seed, so that finished seeds have all pairs when time runs out; what is there is left out."""
    scratch = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    found, tasks = [], {pair: task_of(load(job, [])) for pair, job in jobs.items()}
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for group in given.groups:
            for pair, job in jobs.items():
                if group == REFERENCE or WANTED[group](tasks[pair]):
                    found.append(Part(pair, job, seed, group, given.out, scratch, given.quick))
    return [part for part in found if not part.path.exists()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.portfolio.every", description=__doc__)
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="only these pairs")
    every = [*WANTED, REFERENCE]
    wide = [name for name in every if name != USUAL]
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=every,
        default=wide,
        help="default: all but `usual`, the longest first; `usual` alone has the default candidates of a portfolio",
    )
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--first-seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: the cores)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further file after so many seconds")
    parser.add_argument("--files", type=Path, default=FILES, help="what `prepare` wrote (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="a few steps of each: a check that all of it runs")
    return parser.parse_args()


def check(out: Path, about: dict[str, Any]) -> None:
    """One folder holds the results of one set of jobs."""
    path = out / ABOUT
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about), encoding="utf-8")
    known = json.loads(path.read_text(encoding="utf-8"))
    for what in ("jobs", "quick"):
        if known[what] != about[what]:
            raise SystemExit(f"{out} was made with other {what}; move it away, or give another --out")


def main() -> None:
    given = arguments()
    jobs = {job.parent.name: job for job in sorted((given.files / DEVELOPMENT).glob("*/job.yaml"))}
    if not jobs:
        raise SystemExit(f"{given.files / DEVELOPMENT} has no jobs; run python -m experiments.portfolio.prepare FOLDER")
    if unknown := [name for name in given.pairs or () if name not in jobs]:
        raise SystemExit(f"there is no development pair {unknown[0]!r}; there are {', '.join(jobs)}")
    check(given.out, header(DEVELOPMENT, jobs, quick=given.quick))
    todo = parts(given, {name: jobs[name] for name in given.pairs or jobs})
    began, done, processor = time.time(), 0, 0.0

    def late() -> bool:
        return given.budget is not None and time.time() - began > given.budget

    for name, seconds, wrong in spread(((work, (part,)) for part in todo), min(given.workers, max(1, len(todo))), late):
        done, processor = done + 1, processor + seconds
        if wrong:
            print(f"{name} failed: {wrong}", file=sys.stderr, flush=True)
        if given.workers == 1 or done % given.workers == 0 or done == len(todo):
            passed = time.time() - began
            print(f"{done} of {len(todo)}, {passed:.0f} s; {name} took {seconds} s", file=sys.stderr, flush=True)
    left = f"; {len(todo) - done} are left for another call" if done < len(todo) else ""
    print(f"{given.out}: {done} new files, {processor:.0f} processor seconds{left}")


if __name__ == "__main__":
    main()
