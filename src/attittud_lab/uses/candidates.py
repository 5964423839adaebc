"""Which candidates are tried by default; a command may ask for others.

Decided on 18 development pairs, by the test accuracy of the ensemble of all candidates. `pooled`
adds nothing where `stacked` is there. Kernels and boosting add 2 points on tables and nothing to
features of a pretrained network. Extra trees add less than they cost. `translated` was a default
until 20 held-out pairs: it had to be shown to add something beside `stacked`, and was not.
docs/appendix/answer-development.md has what each adds on these pairs today, with intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product

from attittud_lab.uses import find_use
from attittud_lab.uses.problem import Problem, SimpleCandidate

LEARNERS = {"text": ("linear",), "image": ("linear",), "table": ("linear", "kernel", "boosting")}
"""The default learners for each kind of data."""
USES = ("alone", "stacked")
"""The default uses of a learner."""


def default_candidates(
    problem: Problem, features: str, learners: Sequence[str], uses: Sequence[str]
) -> list[SimpleCandidate]:
    """Return every learner with every use, each with every source and with all sources together.

    A use that cannot take some sources is tried with the others.

    Args:
        problem: its sources are the ones that are combined.
        features: the name of the features.
        learners: the names of learners.
        uses: the names of uses.
    """
    candidates = []
    for learner, name in product(learners, uses):
        for sources in _choices_of_sources(problem, name):
            candidates.append(SimpleCandidate(features, learner, name, sources))
    return candidates


def _choices_of_sources(problem: Problem, name: str) -> list[tuple[str, ...]]:
    """Return the tuples of sources that a use is tried with: each source that it can take, and all
    of these together; one empty tuple for a use without sources.
    """
    use = find_use(name)
    if not use.needs_sources:
        return [()]
    choices: list[tuple[str, ...]] = []
    for source in problem.sources.values():
        if use.objection(problem, [source]) is None:
            choices.append((source.name,))
    if len(choices) > 1:
        choices.append(tuple(chain.from_iterable(choices)))
    return choices
