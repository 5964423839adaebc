"""What a comparison says: decisions, forecasts, announcements and warnings, as sentences.

The other files of this room compute, and call these functions with what they have computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attittud_lab.compare.candidates import PRIMARY_ONLY, Candidate, Variant
from attittud_lab.errors import InputError, counted, percent
from attittud_lab.output.progress import EARLY, readable, time_range
from attittud_lab.statistics import FEWEST, POWER, ROUNDING, Difference

FEW_EXAMPLES = 100
"""With fewer test examples a single one is more than a point of accuracy."""
_MEANINGS = (
    f"▲ shown to be better than {PRIMARY_ONLY} (Holm-corrected p below 0.05). "
    f"▼ shown to be worse than {PRIMARY_ONLY} (Holm-corrected p below 0.05). "
    "= no difference shown. ? too few seeds to tell."
)
_COARSE = "Equal differences can come from a small test set: more test examples would tell more."


# ------------------------------------------------------------------------------------- the decision


def points(difference: Difference) -> str:
    """Return a difference in points (per cent of the metric).

    The interval and the p-value follow if there are enough seeds. Where all seeds agree, an
    interval of no width would look like certainty, so the text says that they agree.
    """
    mean = f"{percent(difference.mean, '+')} points"
    if math.isnan(difference.p):
        return mean
    p = f"p = {difference.p:.2g}"
    if difference.std <= ROUNDING:
        return f"{mean} (the same with all {difference.n} seeds, {p})"
    ends = f"{percent(difference.low, '+')} to {percent(difference.high, '+')}"
    return f"{mean} (95 % interval {ends}, {p})"


NOTHING_TO_COMPARE = "Cannot tell: no strategy has a finished seed in common with primary_only."


def difference_of_best(label: str, other: str, difference: Difference) -> str:
    """Say how the strategy that is best on validation differs from another one."""
    best = f"{label}, the strategy with auxiliary data that is best on validation"
    return f"{best}, differs from {other} by {points(difference)}"


def no_help(best: str, gain: Difference, worthwhile: float) -> str:
    """Say that a worthwhile gain is ruled out."""
    about = difference_of_best(best, PRIMARY_ONLY, gain)
    smallest = f"a gain of {100 * worthwhile:.2g} points is ruled out"
    return f"The auxiliary data do not help: {about}, so {smallest}. Use primary_only."


def unclear(best: str, gain: Difference, advice: str) -> str:
    """Say that these seeds decide nothing, and what would."""
    about = difference_of_best(best, PRIMARY_ONLY, gain)
    return f"Cannot tell with {counted(gain.n, 'seed')}: {about}. {advice}"


def use(label: str, gain: Difference, over_multitask: Difference | None = None) -> str:
    """Say that a strategy gains, and perhaps that it also gains over multitask."""
    gains = f"{points(gain)} over primary_only"
    if over_multitask is not None:
        gains += f", and {points(over_multitask)} over tuned multitask"
    return f"Use {label}: it gains {gains}."


def too_few_seeds(enough: int) -> str:
    """Say that there is no interval yet."""
    advice = f"raise compare.seeds to at least {enough}"
    return f"Fewer than {FEWEST} seeds do not show how much results vary: {advice}."


def too_few_examples(example: float, question: str) -> str:
    """Say that more seeds alone cannot answer a question."""
    worth = f"A single test example is worth {percent(example)} points"
    return f"{worth}, too much to {question}: more test examples are needed, not only more seeds."


def no_number_of_seeds(question: str) -> str:
    """Say that a question needs more seeds than is practical."""
    instead = "more test examples or primary labels might"
    return f"No practical number of seeds would {question}; {instead}."


def seeds_would(question: str, seeds: int, *, as_measured: bool, coarse: bool) -> str:
    """Say how many seeds would answer a question.

    `as_measured`: if the true difference is the measured one. `coarse`: all differences are equal.
    """
    about = "About"
    if as_measured:
        about = "If the true difference is the measured one, about"
    cases = f"in {POWER:.0%} of cases (compare.seeds={seeds})"
    text = f"{about} {seeds} seeds would {question}, {cases}."
    if coarse:
        text += f" {_COARSE}"
    return text


def show_difference(size: float) -> str:
    """Return the question whether a difference of this size is there."""
    return f"show a difference of {100 * size:.2g} points"


def rule_out_gain(worthwhile: float) -> str:
    """Return the question whether a worthwhile gain can be excluded."""
    return f"rule out a gain of {100 * worthwhile:.2g} points"


def instead(simple: Mapping[str, Any] | None, metric: str) -> str:
    """Say what a simple learner on the primary labels alone has; empty if it was not tried."""
    if simple is None:
        return ""
    return (
        f"What you would have had without a network, a simple learner on the primary labels alone "
        f"({simple['label']}): {percent(simple['test'])} % test {metric}."
    )


def few_examples(count: int, metric: str) -> str:
    """Return a warning if the test set is small, else an empty text."""
    if count >= FEW_EXAMPLES:
        return ""
    examples = counted(count, "test example is", "test examples are")
    worth = ""
    if metric == "accuracy" and count:
        worth = f" One of them is {100 / count:.1f} points of accuracy."
    return f"Warning: {examples} few.{worth} Small differences can therefore be luck."


# --------------------------------------------------------------------------------------- the tables


EQUAL_STEPS = "every strategy makes at most the configured number of updates"


def equal_seconds(seconds: float, *, by_budget: bool) -> str:
    """Say what a table at equal seconds compares."""
    why = "the time that multitask needs for the configured updates"
    if by_budget:
        why = "as the budget says"
    return f"every run trains for about {readable(seconds)}, {why}"


# ------------------------------------------------------------------------- before and while it runs


def run_name(candidate: Candidate, variant: Variant, seed: int) -> str:
    """Return the name of a run in progress lines."""
    name = candidate.label
    if candidate.tuned:
        name += f" with weight {variant.weight:g}"
    return f"{name}, seed {seed}"


def announcement(strategies: int, at_steps: int, at_seconds: int, *, quick: bool) -> str:
    """Say how many runs a comparison has, at equal steps (with tuning) and at equal seconds."""
    runs = counted(at_steps + at_seconds, "run")
    total = f"{runs} of {counted(strategies, 'strategy', 'strategies')}"
    if quick:
        total = f"--quick: {total}"
    if at_seconds:
        purpose = (
            f": {at_steps} to tune the strategies and to compare them at equal steps, "
            f"and {at_seconds} to compare them at equal seconds"
        )
    else:
        purpose = ", to tune them and to compare them at equal steps"
    return f"{total}{purpose}. Finished runs are reused."


def left_out(strategy: str) -> str:
    """Say that the configured strategy is a portfolio, which cannot be compared here."""
    return (
        f"strategy: {strategy} does not take part, because it tries several learners itself; "
        "`attittud train` trains it"
    )


def forecast_of_all(seconds: float, reason: str) -> str:
    """Forecast all runs before the first one."""
    return f"Forecast: {time_range(seconds, EARLY)} in all, because {reason}."


def range_of_steps(seconds: Mapping[str, float]) -> str:
    """Say how long steps take: the cheapest and the dearest strategy with their seconds."""
    low = min(seconds, key=lambda label: seconds[label])
    high = max(seconds, key=lambda label: seconds[label])
    cheapest = f"{seconds[low]:.2g} s ({low})"
    dearest = f"{seconds[high]:.2g} s ({high})"
    return f"a step takes from {cheapest} to {dearest}"


def no_baseline(label: str, alternative: str) -> InputError:
    """Return the error for a baseline that diverged with every `alternative` (weight or seed)."""
    reason = f"{label} diverged with every {alternative}, so there is nothing to compare with"
    return InputError(f"{reason}; lower training.guided.lr")


# --------------------------------------------------------------------------------- the next command


def more_seeds(count: int, seconds: float) -> str:
    """Say what a command with more seeds does."""
    return f"adds {count} seeds in about {readable(seconds)} and keeps the finished runs"


def whole_comparison(runs: int, seconds: float) -> str:
    """Say what the command without --quick does."""
    more = counted(runs, "more run")
    return f"trains up to {more}, which take about {readable(seconds)}"


# ---------------------------------------------------------------------------------------- the notes


def figures(metric: str, seeds: int) -> str:
    """Say what the figures of a table are, and explain the marks."""
    return (
        f"Figures are means of the test {metric} over {counted(seeds, 'seed')}. Differences are in "
        f"points; each compares runs with the same seed. {_MEANINGS}"
    )


def arrow(sign: str, *, decided: bool) -> str:
    """Explain the arrow at a row."""
    if decided:
        return f"{sign} marks the row of the decision."
    return f"{sign} marks the strategy with auxiliary data that is best on validation."


def cost_and_scatter(seeds: int) -> str:
    """Explain the columns with the cost and with the intervals."""
    scatter = (
        "Intervals show how much results would vary with other seeds, not with other data sets."
    )
    if seeds < FEWEST:
        scatter = (
            f"With fewer than {FEWEST} seeds there is no interval and no test; each seed is shown "
            "instead."
        )
    return f"Cost is the time of a step relative to multitask. {scatter}"


def tuned(tuning: Mapping[str, Any]) -> str:
    """Say what was tuned, from the entry `tuning` of comparison.json."""
    weights = ", ".join(map("{:g}".format, tuning["weights"]))
    space = tuning["space"]
    searched = ""
    fixed = ""
    for path, values in space.items():
        searched += f", {path} among {', '.join(values)}"
        fixed += f" and {path} {values[0]}"
    if tuning["runs_each"] > 1:
        return (
            "Every strategy with auxiliary data chose its weight on validation among "
            f"{weights}{searched}, in at most {tuning['runs_each']} runs."
        )
    return f"Nothing was tuned: every strategy has the weight {weights}{fixed}."


def wider_range(weight: float, *, smallest: bool) -> str:
    """Say that multitask chose the first or the last weight."""
    end = "largest"
    if smallest:
        end = "smallest"
    advice = "a wider range in compare.weights would be fairer"
    return f" Multitask chose {weight:g}, the {end} weight tried: {advice}."


def always_diverged(labels: Sequence[str]) -> str:
    """Say which strategies have no row."""
    return f"Left out, because training diverged with every weight: {', '.join(labels)}."


def lost_seeds(label: str, seeds: Sequence[str], table: str) -> str:
    """Say which seeds of a row diverged."""
    return (
        f"{label} diverged with seed {', '.join(seeds)} at {table}: its row has only the "
        "other seeds, and it is not recommended."
    )
