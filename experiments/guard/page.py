"""docs/appendix/guard-experiment.md from the results: the outcome by the rules of README.md, and the figures behind it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from .__main__ import ABOUT
from .data import TASKS
from .methods import METHODS
from .pool import MANY, SEEDS, load, stage_1, stage_2
from .score import AVERAGED, LOWER, SHARE, SHARES, TUNED_M, TUNING, Asked, Measure, Ratio, Results, less, ratio
from .train import RATES, Run

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "appendix" / "guard-experiment.md"
NAMES = {"a": "GSM8K", "b": "unlearn TOFU", "c": "film reviews"}
BUDGETS = {False: "equal steps", True: "equal minutes"}
MEASURES: dict[Measure, str] = {"retained": "retained sets", "wikitext": "wikitext-2", "drift": "drift"}
DECIDING: tuple[Measure, ...] = ("retained", "wikitext")
"""The drift was added after stage 1 and has no part in the rules."""
EXPLAINED = """\
* The **retained sets** show what the model should keep. They are measured and never protected; wikitext-2 is other text. m is
  the number of protected examples. *Plain* is fine-tuning without a guard, *sum* adds the protected loss to it. The protocol
  describes the other methods.
* **Forgetting** is the rise of the loss, in nats per token, at the point where a run has reached 70 % of plain's final gain.
* **Drift** is KL(start ‖ now) on the retained sets. A loss can fall below the start model's loss because a model becomes
  surer of its own replies; the drift shows this.
* The **best free way** is whichever of KL, other learning rates and averaging forgets least. Ratios have 95 % intervals over
  paired seeds (Fieller).
  *Any* marks an end of an interval that is not bounded.
* A cell with *2 of 4* has no figure, because only so many seeds reach the gain.
* *Plain* has the learning rate that stage 1 chose for it. *Best rate* has whichever of the three rates that we tried forgets
  least, chosen for each column separately. It may be higher than the rate that stage 1 chose.
"""
ORDER = "One seed gives an order, not a result."
EARLIER = 1.0
AFTERWARDS = (
    "\nAt the highest learning rate plain unlearns far more than anybody would want. At the rates that stage 1 chose, no guard "
    f"reaches that gain. So the next table is for a gain of {EARLIER:g} nat. This gain was chosen afterwards and has no part in "
    "the rules."
)
WON_AGAINST_REPLAY, WON_AGAINST_FREE, TASKS_TO_WIN = 0.5, 0.8, 2


def places(cases: Sequence[Asked]) -> str:
    """Where something was found, in words."""
    by_table: dict[str, dict[str, list[str]]] = {}
    for asked in cases:
        words = f"{NAMES[asked.task]} at {BUDGETS[asked.minutes]}"
        by_table.setdefault(words, {}).setdefault(asked.method, []).append(str(asked.m))
    found = [
        f"{words} ({', '.join(f'{name} with m = ' + ' and '.join(many) for name, many in methods.items())})"
        for words, methods in by_table.items()
    ]
    return "; ".join(found) or "nowhere"


class Page:
    """All comparisons of stage 2."""

    def __init__(self, results: Results, chosen: dict[str, Any], seeds: Mapping[str, Sequence[int]]) -> None:
        self.results, self.chosen, self.seeds = results, chosen, seeds  # by task
        self.projections: list[str] = chosen["projections"]
        self.replay: str = chosen["replay"]

    def scores(self, asked: Asked) -> list[float | None]:
        return self.results.scores(asked, self.seeds[asked.task])

    def compare(self, asked: Asked, other: str) -> Ratio | None:
        """Forgetting over that of another method; None where one of them misses the gain."""
        own, theirs = (self.scores(one) for one in (asked, replace(asked, method=other)))
        if None in own or None in theirs:
            return None
        return ratio([x for x in own if x is not None], [x for x in theirs if x is not None])

    def best_free(self, asked: Asked) -> str | None:
        """Of KL, a lower rate and averaging, the one that forgets least."""
        means = {}
        for name in ("kl", LOWER, AVERAGED):
            found = self.scores(replace(asked, method=name))
            if None not in found:
                means[name] = fmean(x for x in found if x is not None)
        return min(means, key=means.__getitem__, default=None)

    def beats(self, asked: Asked) -> bool:
        """Whether one projection wins one task, with one m, budget and set."""
        free = self.best_free(asked)
        pairs = [(self.replay, WON_AGAINST_REPLAY), (free, WON_AGAINST_FREE)]
        found = [(None if name is None else self.compare(asked, name), limit) for name, limit in pairs]
        return all(one is not None and one.value <= limit and one.high < 1 for one, limit in found)

    def winners(self) -> list[str]:
        """Projections that win in two of three tasks at some m, at both budgets and on wikitext-2 too."""
        return [
            f"{name} with m = {m}"
            for name in self.projections
            for m in MANY
            if sum(
                all(
                    self.beats(Asked(task, name, m, minutes=late, measure=measure))
                    for late in BUDGETS
                    for measure in DECIDING
                )
                for task in TASKS
            )
            >= TASKS_TO_WIN
        ]

    def better_than(self, other: str) -> list[Asked]:
        """Where a projection has an interval below 1 against another method; also where only that one misses the gain."""
        found = []
        for task in TASKS:
            for name in self.projections:
                for m in MANY:
                    for late in BUDGETS:
                        asked = Asked(task, name, m, minutes=late)
                        own, theirs = (self.scores(one) for one in (asked, replace(asked, method=other)))
                        known = [[x for x in scores if x is not None] for scores in (own, theirs)]
                        if None not in own and (None in theirs or less(*known)):
                            found.append(asked)
        return found

    def drifts(self, cases: Sequence[Asked], method: str | None = None) -> str:
        """How far predictions are from those of the start, of these projections or of another method in their place."""
        found = [
            x
            for asked in cases
            for x in self.scores(replace(asked, measure="drift", method=method or asked.method))
            if x is not None
        ]
        return f"{min(found):.3f} to {max(found):.3f}" if found else "unknown"

    def verdict(self) -> str:
        winners, better = self.winners(), self.better_than("kl")
        if winners:
            return f"**Win**, by the rule that was fixed beforehand: {'; '.join(winners)}."
        if not better:
            return (
                '**Killed**: no projection forgets less than KL to the start model, anywhere. `guard="kl"` is the default; '
                "projections stay as presets."
            )
        return (
            "**No win**, by the rules that were fixed beforehand (the list below explains the words). At the same gain, a "
            "projection has a significantly lower loss on the retained sets than KL in these cases only: "
            f"{places(better)}. But there the drift of its predictions is {self.drifts(better)} nats, depending on the "
            f"seed; the drift of KL is {self.drifts(better, 'kl')}. A projection has a significantly lower loss than "
            f"`{self.replay}` in these: {places(self.better_than(self.replay))}. "
            'So `guard="kl"` remains the default, and `init` proposes it.'
        )

    def winnable(self, task: str, m: int) -> bool:
        """Whether the ratios that a win needs exist: both sides reach the gain, and those to beat forget more than nothing."""
        for late in BUDGETS:
            for measure in DECIDING:
                asked = Asked(task, self.replay, m, minutes=late, measure=measure)
                for name in (self.replay, self.best_free(asked)):
                    scores = [None] if name is None else self.scores(replace(asked, method=name))
                    known = [x for x in scores if x is not None]
                    if len(known) < len(scores) or fmean(known) <= 0:
                        return False
        return True

    def limits(self) -> str:
        """What the rules and the choice of rates could not show."""
        found = []
        if not any(self.winnable(task, m) for task in TASKS for m in MANY):
            found.append(
                "The rules left no room for a win. A win is decided by ratios of forgetting to that of "
                f"`{self.replay}` and of the best free way, on the retained sets and wikitext-2, at equal steps and minutes. In "
                f"every task at least one of these ratios does not exist, because `{self.replay}` or the best free way misses "
                "the gain or forgets nothing."
            )
        reached = []
        for name in ("kl", *self.projections):
            for rate in RATES:
                (score,) = self.results.scores(Asked("a", name, TUNED_M, rate, minutes=True), [TUNING])
                if score is not None and rate != self.chosen["rates"][name]:
                    reached.append(f"{name} at {rate:g} (forgetting {score:.3f})")
        if reached:
            found.append(
                "Learning rates were chosen at equal steps. In stage 1 (one seed), these other rates reach the gain on "
                f"{NAMES['a']} in as many minutes as a plain run takes: {', '.join(reached)}."
            )
        return " ".join(found)

    # ------------------------------------------------------------------------------------------------ tables

    def timed(self, asked: Asked) -> bool:
        """Whether the step times are there that equal minutes need."""
        name = "plain" if asked.method in (LOWER, AVERAGED) else asked.method
        return not math.isnan(self.results.budget(asked.task, name, asked.lora, minutes=asked.minutes))

    def cell(self, asked: Asked) -> str:
        if not self.timed(asked):
            return "not timed"
        scores = self.scores(asked)
        known = [x for x in scores if x is not None]
        return f"{fmean(known):.3f}" if len(known) == len(scores) else f"{len(known)} of {len(scores)}"

    def table(self, task: str, gain: float | None = None, *, minutes: bool = False) -> list[str]:
        """Forgetting of every method, by m and by what is measured."""
        columns = [(m, measure) for m in MANY for measure in MEASURES]
        head = " | ".join(f"m = {m}: {MEASURES[measure]}" for m, measure in columns)
        found = [f"\n| {BUDGETS[minutes]} | {head} |", "|---|" + "---|" * len(columns)]
        for name in ("plain", LOWER, AVERAGED, self.replay, "kl", *self.projections):
            # Plain itself is shown at the rate that stage 1 chose for it.
            rate = self.chosen["rates"]["plain"] if name == "plain" else None
            every = [Asked(task, name, m, rate, minutes=minutes, measure=measure, gain=gain) for m, measure in columns]
            found.append(f"| {name} | {' | '.join(map(self.cell, every))} |")
        return found

    def other_gains(self, task: str) -> list[str]:
        """Forgetting and drift at the other shares of plain's gain, at equal steps."""
        columns = [
            (share, measure, m) for share in SHARES if share != SHARE for measure in ("retained", "drift") for m in MANY
        ]
        head = " | ".join(f"{share:.0%}: {MEASURES[measure]}, m = {m}" for share, measure, m in columns)
        found = [f"\n| equal steps, other gains | {head} |", "|---|" + "---|" * len(columns)]
        for name in ("plain", LOWER, AVERAGED, self.replay, "kl", *self.projections):
            rate = self.chosen["rates"]["plain"] if name == "plain" else None
            every = [Asked(task, name, m, rate, measure=measure, share=share) for share, measure, m in columns]
            found.append(f"| {name} | {' | '.join(map(self.cell, every))} |")
        return found

    def ratios(self, task: str) -> list[str]:
        """The comparisons that the rules ask for, as far as they say anything."""
        found = list[str]()
        for name in self.projections:
            for m in MANY:
                for minutes, words in BUDGETS.items():
                    for measure in DECIDING:
                        asked = Asked(task, name, m, minutes=minutes, measure=measure)
                        free = self.best_free(asked)
                        others = (self.replay, "kl", free)
                        ratios = [None if other is None else self.compare(asked, other) for other in others]
                        if any(ratios):
                            cells = ["" if one is None else one.text for one in ratios]
                            cells[-1] += "" if ratios[-1] is None else f" {free}"
                            found.append(f"| {name}, m = {m}, {words}, {MEASURES[measure]} | {' | '.join(cells)} |")
        if not found:
            return ["\nNo ratio can be given: the projections miss the gain, or the others forget nothing."]
        return [
            f"\n| ratio of forgetting | over {self.replay} | over kl | over the best free way |",
            "|---|---|---|---|",
            *found,
        ]

    def tables(self) -> list[str]:
        lines = []
        for task in TASKS:
            seeds = self.seeds[task]
            wanted = self.results.wanted_gain(task, lora=False, seeds=seeds)
            if wanted is None:
                continue
            lines.append(f"\n### {NAMES[task]}\n")
            lines.append(
                f"The gain to reach, 70 % of plain's final gain, is {wanted:.2f} nats; there are {len(seeds)} seeds."
            )
            for minutes in BUDGETS:
                lines += self.table(task, minutes=minutes)
            lines += self.other_gains(task)
            lines += self.ratios(task)
            if task == "b":
                lines += [AFTERWARDS, *self.table(task, EARLIER)]
        return lines


def stage_one(results: Results, chosen: dict[str, Any]) -> list[str]:
    """Forgetting of every method in stage 1, by the share of plain's gain."""
    lines = [
        "| method | rate | forgetting "
        + " | ".join(f"at {share:.0%} of plain's gain" for share in SHARES)
        + " | time of a step over plain's |"
    ]
    lines.append("|---|---|" + "---|" * (len(SHARES) + 1))
    base = results.times.get("a/plain")
    for method in sorted(METHODS, key=chosen["scores"].__getitem__):
        rate = chosen["rates"][method]
        scores = [results.scores(Asked("a", method, TUNED_M, rate, share=share), [TUNING])[0] for share in SHARES]
        words = ["not reached" if score is None else f"{score:.3f}" for score in scores]
        own = results.times.get(f"a/{method}")
        cost = "" if base is None or own is None else f"{own / base:.2f}"
        lines.append(f"| {method} | {rate:g} | {' | '.join(words)} | {cost} |")
    return lines


def lora(results: Results, chosen: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    lines = [f"| LoRA, GSM8K, m = {TUNED_M} | {' | '.join(MEASURES.values())} |", "|---|" + "---|" * len(MEASURES)]
    for method in ("plain", "kl", chosen["projections"][0]):
        cells = []
        for measure in MEASURES:
            found = results.scores(Asked("a", method, TUNED_M, lora=True, measure=measure), seeds)
            known = [x for x in found if x is not None]
            cells.append(
                f"{fmean(known):.3f}" if len(known) == len(found) else f"gain reached by {len(known)} of {len(found)}"
            )
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def whole_seeds(left: Sequence[Run], task: str, seeds: Sequence[int]) -> list[int]:
    """Those of which no run is missing."""
    missing = {run.seed for run in left if run.task == task and not run.lora}
    return [seed for seed in seeds if seed not in missing]


def page(folder: Path) -> str:
    """The whole page; it says what is missing while there is something missing."""
    results = load(folder)
    about = json.loads((folder / ABOUT).read_text("utf-8")) if (folder / ABOUT).exists() else {}
    chosen = results.chosen()
    known = {line["key"] for line in results.lines}
    title = "# Do projections protect a language model better than simple methods?\n"
    protocol = (
        "The protocol was fixed before any run, and lists what was changed after stage 1: "
        "[experiments/guard/README.md](../../experiments/guard/README.md)."
    )
    if not chosen:
        done = sum(run.key in known for run in stage_1())
        return f"{title}\n**Not known yet**: {done} of {len(stage_1())} runs of stage 1 are done. {protocol}\n"
    seeds = [0, 1] if about.get("quick") else list(SEEDS)
    left = [run for run in stage_2(chosen, seeds) if run.key not in known]
    whole = Page(results, chosen, {task: whole_seeds(left, task, seeds) for task in TASKS})
    needed = ("plain", "kl", whole.replay, *whole.projections)
    untimed = [f"{t}/{name}" for t in TASKS for name in needed if not whole.timed(Asked(t, name, minutes=True))]
    if left:
        verdict = f"**Not known yet**: {len(left)} runs of stage 2 are missing."
    elif untimed:
        verdict = f"**Not known yet**: step times of {', '.join(untimed)} are missing."
    else:
        verdict = whole.verdict()
    revisions = dict.fromkeys(line.get("revision") for line in results.lines if line.get("revision"))
    made = (
        f"torch {about.get('torch')} on {about.get('name') or about.get('device')} "
        f"(revisions {', '.join(revisions) or about.get('revision')})"
    )
    note = "\n*These are made-up data and a tiny model: a check that everything runs.*\n" if about.get("quick") else ""
    lines = [
        f"{title}{note}\n{verdict} {protocol}\n",
        *([f"{limits}\n"] if not left and not untimed and (limits := whole.limits()) else []),
        f"The model is SmolLM2-135M-Instruct. There are {len(results.lines)} runs, made with {made}.\n",
        EXPLAINED,
        "## Stage 1: one seed, GSM8K, 32 protected replies\n",
        *stage_one(results, chosen),
        f"\nStage 2 continues with {chosen['replay']}, {' and '.join(chosen['projections'])}. {ORDER}\n",
    ]
    if len(left) < len(stage_2(chosen, seeds)):
        lines += ["## Stage 2: three tasks", *whole.tables()]
        if not any(run.lora for run in left):
            lines += ["\n### LoRA\n", *lora(results, chosen, seeds)]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if words is None else list(words)
    folder = Path(given[0]) if given else HERE / "results"
    target = Path(given[1]) if len(given) > 1 else PAGE
    target.write_text(page(folder), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
