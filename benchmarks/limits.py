"""The goals that are missed: one line for each kind of goal, with its limiting factor."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.goals import Goal


@dataclass(frozen=True)
class Topic:
    """Goals whose names have the same beginning."""

    begins: tuple[str, ...]
    title: str
    limit: str
    shown: int = 1
    """How many misses, of different models, are shown. Others are left to the table of goals."""


TOPICS = (
    Topic(
        ("plain step over two",),
        "Plain eager steps",
        "The overhead is Python between the kernels, which CUDA graphs remove.",
    ),
    Topic(
        ("mean step over the multitask step",),
        "Mean steps",
        "An eager refresh waits for kernel launches; a captured refresh does not.",
    ),
    Topic(
        ("refresh against the authors'",),
        "Eager refreshes against the authors' algorithm",
        "Networks of small kernels wait for kernel launches.",
    ),
    Topic(
        ("refresh over",),
        "Eager refreshes against other libraries",
        "On the device, both take almost the same time ([profile](../benchmarks/profiled.txt)). In TorchJD's slower steps, "
        "Python hides more of it.",
    ),
    Topic(('eta="auto"',), 'Judges of `eta="auto"`', "The judges' pass waits for kernel launches."),
    Topic(("functions called",), "Function calls", "An eager step waits for each of them."),
    Topic(
        ("projection and correction",),
        "Projection and [correction](how-it-works.md#the-update), relative to two reads of the k directions",
        "They also read both gradients and write the update: 1.5 times the data at k = 5, so a CUDA graph cannot do better. "
        "The rest of an eager step is launches.",
    ),
    Topic(
        ("orthonormalisation", "growth of all passes"),
        "Orthonormalisation at k = 20, relative to its reads and writes, and the growth of all passes with k",
        "The Gram matrix is computed in float64, which at k = 20 takes longer than the reads "
        "([profile](../benchmarks/profiled.txt)).",
    ),
    Topic(
        ("memory above multitask",),
        "Memory between refreshes and in a refresh, in vectors of D",
        "Backward passes hold gradients of activations: for m examples (LoRA: also without a guide), and with `batched` for "
        "several rows. With frozen BatchNorm, the primary gradient waits meanwhile.",
        shown=3,
    ),
    Topic(
        ("memory of a refresh above multitask as m grows",),
        "Growth of a refresh's memory with m, in vectors of D",
        "Gradients of activations grow with m, and with `hooks` gradients of single examples.",
    ),
    Topic(("growth of a refresh with k",), "Growth of a refresh with k", "The growth should be at most linear."),
)


def missed(found: list[Goal]) -> list[str]:
    """A table in Markdown with a line for each topic with a missed goal."""
    lines = []
    for topic in TOPICS:
        judged = [goal for goal in found if goal.what.startswith(topic.begins) and goal.met is not None]
        misses = [goal for goal in judged if goal.met is False]
        if misses:
            by_model: dict[str, list[Goal]] = {}
            for goal in misses:
                by_model.setdefault(goal.brief.split(" with `")[0], []).append(goal)
            shown = [max(goals, key=lambda goal: goal.excess) for goals in by_model.values()][: topic.shown]
            wanted = [goal.goal.split(":")[0] for goal in shown]
            # Where the next miss has the same goal, only that one names it.
            named = [
                goal.brief + (f" ({own})" if own != later else "")
                for goal, own, later in zip(shown, wanted, [*wanted[1:], None], strict=True)
            ]
            more = f"<br>and {len(misses) - len(shown)} more" if len(misses) > len(shown) else ""
            count = f"{len(misses)} of {len(judged)}"
            lines.append(f"| {topic.title} | {count} | {'<br>'.join(named)}{more} | {topic.limit} |")
    return ["| goals | missed | misses (goal) | why |", "|---|---|---|---|", *lines] if lines else []
