"""Which candidates are tried by default; a command may ask for others.

Decided on 18 development pairs, by the test accuracy of the ensemble of all candidates. Kernels and
boosting add 2 points on tables and nothing to features of a pretrained network.
"""

from __future__ import annotations

from collections.abc import Mapping

from attittud_lab.uses import find_use
from attittud_lab.uses.problem import Problem, SimpleCandidate

ENCODED: Mapping[str, tuple[str, ...]] = {"linear": ("alone", "stacked", "translated")}
"""The uses of each learner, for texts and images."""
TABLES: Mapping[str, tuple[str, ...]] = {
    "linear": ("alone", "stacked", "translated"),
    "kernel": ("alone", "stacked"),
    "boosting": ("alone", "stacked"),
}
"""The uses of each learner, for tables."""


def default_candidates(
    problem: Problem, features: str, uses: Mapping[str, tuple[str, ...]] = ENCODED
) -> list[SimpleCandidate]:
    """Return every learner with its uses, each with every source and with all sources together.

    Args:
        problem: its sources.
        features: the name of the features.
        uses: the uses of each learner.
    """
    choices: list[tuple[str, ...]] = [(source,) for source in problem.sources]
    if len(choices) > 1:
        choices.append(tuple(problem.sources))
    result = []
    for learner, names in uses.items():
        for name in names:
            of_use = choices if find_use(name).needs_sources else [()]
            result += [SimpleCandidate(features, learner, name, choice) for choice in of_use]
    return result
