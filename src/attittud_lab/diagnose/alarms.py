"""Three reasons to doubt that a decomposition can do anything for a job, each with its number and what to try.

They say that a figure is small, or noise. None says that training will fail: no figure here has been validated as a
predictor of the final result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attittud_lab.statistics import ALPHA, SignTest, Summary

LEAST_PRIMARY = 0.05
LEAST_AUXILIARY = 0.01


@dataclass(frozen=True)
class Alarm:
    """`found` is what was measured, `cure` what to try when it fired."""

    name: str
    fired: bool
    found: str
    cure: str


def primary_alarm(captured: Summary) -> Alarm:
    """Does the span hold more of a primary gradient than of the examples that it was built from?"""
    return Alarm(
        "fresh_primary_outside_span",
        captured.mean < LEAST_PRIMARY,
        f"the span captures {in_words(captured)} of a fresh primary gradient (alarm under {LEAST_PRIMARY:.0%})",
        "build the basis from more examples (strategy.basis_batch), raise strategy.rank, lower strategy.refresh_every, or "
        "append the current primary gradient (strategy.include_mean=true)",
    )


def auxiliary_alarm(captured: Mapping[str, Summary]) -> Alarm:
    """Is there anything in the span to re-weight? The alarm is for any source."""
    found = "; ".join(f"{name} {in_words(share)}" for name, share in captured.items())
    low = [name for name, share in captured.items() if share.mean < LEAST_AUXILIARY]
    return Alarm(
        "auxiliary_outside_span",
        bool(low),
        f"share of the auxiliary gradient in the span: {found} (alarm under {LEAST_AUXILIARY:.0%})",
        f"raise strategy.rank and strategy.basis_batch; as it is, the weights of the helpful and the harmful part have next to "
        f"nothing to act on{' in ' + ', '.join(low) if low else ''}, and only the weight of the whole source can be tuned "
        "(strategy.auxiliary_weight)",
    )


def sign_alarm(test: SignTest) -> Alarm:
    """Do the signs that decide between helpful and harmful come back with other examples?"""
    return Alarm(
        "signs_are_noise",
        test.p > ALPHA,
        f"two half-batches of primary examples agree in sign in {test.agreeing} of {test.n} directions "
        f"({test.share:.1%} where chance gives {test.chance:.1%}; {test.clusters} blocks of steps, worth "
        f"{test.effective_n:.0f} independent directions, one-sided p = {test.p:.2g}; alarm above {ALPHA:.2g})",
        "raise training.guided.primary_batch, take fewer and stronger directions (strategy.basis=svd with a lower "
        "strategy.rank), check the primary labels, or give more --steps if the agreement is above chance; as it is, helpful and "
        "harmful are told apart by the draw of the batch",
    )


def verdict(alarms: list[Alarm]) -> str:
    """The last line: which alarms fired, with what to try."""
    fired = [f"({number}) {alarm.found}; try: {alarm.cure}" for number, alarm in enumerate(alarms, 1) if alarm.fired]
    if fired:
        return "Alarms fired: " + ". ".join(fired) + "."
    return "Alarms fired: none of the three. That is no promise of a gain; `attittud compare` measures one."


def in_words(share: Summary) -> str:
    return f"{share.mean:.1%} ({max(share.low, 0):.1%} to {min(share.high, 1):.1%})"
