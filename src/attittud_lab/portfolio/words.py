"""Sentences of a portfolio, for the terminal and for the report; nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attittud_lab.errors import counted, percent
from attittud_lab.output.progress import EARLY, readable, time_range
from attittud_lab.portfolio.budget import Plan
from attittud_lab.portfolio.leaderboard import answer
from attittud_lab.portfolio.standing import Standing

ROUGH = "it was calibrated for the default candidates, and this job has others"
GUESSING = "The model is not shown to be better than guessing:"


def interval(gain: Mapping[str, Any]) -> str:
    """Say the 95 % interval of a difference, or why there is none."""
    if "few_groups" in gain:
        return f"no interval: only {gain['few_groups']} groups are held out"
    return f"95 % interval {percent(gain['low'], '+')} to {percent(gain['high'], '+')}"


# ------------------------------------------------------------------------------------ while it runs


def rare(names: str) -> str:
    """Say which classes cannot be held out."""
    reason = "have too few examples to be held out and are used for training only"
    return f"these classes {reason}: {names}"


def standing_line(standing: Standing, metric: str) -> str:
    """One line for a finished candidate."""
    if standing.curve is None:
        return f"{standing.label}: diverged ({standing.diverged})"
    score = standing.curve.scores[standing.curve.best]
    return f"{standing.label}: out-of-fold {metric} {score:.4f}"


def coming(plan: Plan, folds: int, at_once: int, learner: str) -> str:
    """Say how long the networks of a learner will take; `at_once` trials run at the same time."""
    name = learner
    if learner == "network":
        name = "networks"
    strategies = counted(len(plan.candidates), "candidate strategy", "candidate strategies")
    parts = "one split of the labels"
    if folds > 1:
        parts = f"{folds} folds of the labels"
    runs = counted(round(plan.runs), "full run")
    seconds = time_range(plan.seconds / at_once, EARLY)
    return f"{name}: {strategies} on {parts}, which is the work of {runs}: {seconds}"


def idle_cores(cores: int) -> str:
    """Say that all cores of this machine could be used, instead of one."""
    return (
        f"this uses one of {cores} cores; to train {cores} trials at a time, stop now and start "
        f"again with --workers {cores}: finished trials are kept"
    )


def continuing(done: int, jobs: int) -> str:
    """Say how many trials an earlier process finished."""
    return f"continuing: {done} of {jobs} trials are done"


def features_skipped(name: str, seconds: float, allowed: float) -> str:
    """Say that there is no time for these features."""
    needed = f"{readable(seconds)} of {readable(allowed)}"
    return (
        f"{name}: skipped, because its features would take about {needed}; to use them, raise "
        "portfolio.budget"
    )


def out_of_time(names: Sequence[str], allowed: float) -> str:
    """Say that features or simple candidates are not tried any more."""
    used_up = f"the {readable(allowed)} of portfolio.budget are used up"
    return f"skipped, because {used_up}: {'; '.join(names)}; to try them, raise portfolio.budget"


def networks_skipped(learner: str, why: str) -> str:
    """Say that the networks of a learner are not trained."""
    return f"{learner}: skipped, because {why}"


def cannot_win(best: str, metric: str) -> str:
    """Say that networks have no room above the best simple candidate."""
    return (
        f"the out-of-fold {metric} of {best} is within a standard error of 100 %, so it could not "
        "win; to train it all the same, name no simple learner in portfolio.learners"
    )


def too_few_steps(least: float) -> str:
    """Say that the budget leaves too few steps for networks beside simple candidates."""
    return (
        f"what is left of portfolio.budget is not enough for {least:.0%} of its steps; to train "
        "it, raise portfolio.budget"
    )


def features_take(name: str, seconds: float, left: float | None) -> str:
    """Say how long features take; `left` is the time until the end, if it is known."""
    sentence = f"{name}: its features take about {readable(seconds)}"
    if left is not None:
        sentence += f", and all that is left about {readable(left)}"
    return sentence


def use_skipped(use: str, objection: str) -> str:
    """Say that a use cannot take a source."""
    return f"{use}: skipped for {objection}"


def dropped(label: str, why: str) -> str:
    """Say that a candidate diverged after it was chosen."""
    return f"{label} is dropped: in its final training {why}"


def legend(settings: Iterable[Mapping[str, Any]]) -> str:
    """Explain the labels of network candidates with these settings; empty if they need no
    explanation.
    """
    rows = list(settings)
    parts = []
    if any(row.get("auxiliary_weight", 1) != 1 for row in rows):
        parts.append("a number is the weight of the auxiliary loss")
    if any(row.get("head") == "own" for row in rows):
        parts.append("own head means a separate output layer for the auxiliary data")
    if not parts:
        return ""
    return f"in the names of candidates, {', and '.join(parts)}"


def chance(estimate: Mapping[str, Any]) -> str:
    """Say the chance that auxiliary data help."""
    sentence = f"chance that the auxiliary data help: {estimate['value']:.0%}"
    if not estimate["calibrated"]:
        sentence += f" (rough: {ROUGH})"
    return sentence


# --------------------------------------------------------------------------------------- at the end


def ranking(metric: str) -> str:
    """Say what ranks candidates."""
    return (
        f"their ranking score: the out-of-fold {metric}; for a network, the mean over the "
        "evaluations around its best step"
    )


def model(final: str, winner: str, picks: Mapping[str, int], *, of_folds: bool) -> str:
    """Say what the model consists of; `of_folds`: its networks are those of the folds."""
    if final == "ensemble" and len(picks) > 1:
        total = sum(picks.values())
        # The names have commas.
        parts = [f"{label} ({count} of {total})" for label, count in picks.items()]
        return f"The model is a mean of {'; '.join(parts)}."
    if of_folds:
        return f"The model is a mean of the networks of {winner}, one from each fold."
    return f"The model is {winner}, trained on all labels."


ANSWERS = {"use": "helped", "no_help": "did not help", "unclear": "unclear"}
_ANSWERS_IN_A_CLAUSE = {
    "use": "The auxiliary data helped",
    "no_help": "The auxiliary data did not help",
    "unclear": "It is unclear whether the auxiliary data helped",
}


def decision(
    final: str,
    winner: str,
    picks: Mapping[str, int],
    gain: Mapping[str, Any] | None,
    metric: str,
    *,
    of_folds: bool,
) -> str:
    """Say whether the auxiliary data helped, and what was trained. Differences are in points."""
    trained = model(final, winner, picks, of_folds=of_folds)
    if gain is None:
        return f"{trained} There was nothing to compare it with."
    if math.isnan(gain["difference"]):
        unknown = f"What the auxiliary data were worth is not known: {metric} is not defined on these labels"
        return f"{unknown}. {trained}"
    sentence = (
        f"{_ANSWERS_IN_A_CLAUSE[answer(gain)]}: {percent(gain['difference'], '+')} points of "
        f"out-of-fold {metric} ({interval(gain)}). {trained} The points are the best candidate with "
        f"auxiliary data ({gain['best']}) minus the best without ({gain['reference']})."
    )
    if gain["of"] > 1:
        sentence += (
            " They may be a little too good, because the same held-out labels chose that candidate."
        )
    if "skipped" in gain:
        skipped = counted(gain["skipped"], "candidate")
        sentence += f" {skipped} with auxiliary data did not fit into portfolio.budget."
    return sentence


def without_us(row: Mapping[str, Any] | None, model: Mapping[str, Any], metric: str) -> str:
    """Say what a user would have had without auxiliary data and without this program."""
    if row is None:
        return ""
    sentence = (
        f"What you would have had without us: {row['label']}, out-of-fold {metric} "
        f"{percent(row['score'])} %; this model has {percent(model['score'])} %."
    )
    if not row["for_comparison"]:
        return sentence
    remark = "It was"
    if row["score"] > model["score"]:
        remark = "It is better, but was"
    learner = row["settings"]["learner"]
    return (
        f"{sentence} {remark} tried for comparison only; to let it take part, add {learner} to "
        "portfolio.learners."
    )


def guess(estimate: Mapping[str, Any], score: float, metric: str, advice: str) -> str:
    """Say that a model is not shown to be better than a guess; empty if it is shown."""
    if estimate["beaten"]:
        return ""
    if math.isnan(estimate["difference"]):
        return f"{GUESSING} its out-of-fold {metric} is not defined on these labels. {advice}"
    same = "The best constant guess"
    if estimate["class"]:
        same = f"Always guessing {estimate['class']}, the most frequent class,"
    return (
        f"{GUESSING} its out-of-fold {metric} is {percent(score)} %. {same} has "
        f"{percent(estimate['score'])} %. {advice}"
    )


MORE_LABELS = "More labels may help."


def features_may_help(name: str) -> str:
    """Name features of a pretrained network, for a model that is no better than a guess."""
    return f"Features of a pretrained network may help: portfolio.features=[{name}]."


def networks_may_help(names: Iterable[str]) -> str:
    """Name pretrained networks, for a model that is no better than a guess."""
    return f"A pretrained network may help: {' or '.join(map('model={}'.format, names))}."


# -------------------------------------------------------------------------------- translated labels


def translation(
    source: str, label: str, name: str, meaning: Mapping[str, Any], own: float | None
) -> str:
    """Say what a label of a source means, such as "what a model of web calls cat is 61 % dog to you
    (52 to 70 %), and 93 % cat in web".

    `own` is how often the model is right where it says this label in the source itself, or None if
    that is not known. If the labels are right and mean the same to both, the first share is about as
    large.
    """
    ends = f"{100 * meaning['low']:.0f} to {100 * meaning['high']:.0f} %"
    share = f"{100 * meaning['value']:.0f} %"
    text = f"what a model of {source} calls {label} is {share} {name} to you ({ends})"
    if own is not None:
        text += f", and {100 * own:.0f} % {label} in {source}"
    return text


def clearest(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the clearest sentence about each source that has one."""
    return [table["sentences"][0]["text"] for table in tables if table["sentences"]]


def suspicious(lists: Iterable[Mapping[str, Any]], file: str) -> str:
    """Say how many labels look wrong, by source; empty if none does."""
    parts = []
    for source in lists:
        if source["listed"]:
            parts.append(f"{source['listed']} of {source['examined']} in {source['source']}")
    if not parts:
        return ""
    return f"auxiliary labels that look wrong: {', '.join(parts)} ({file})"
