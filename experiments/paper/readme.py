"""The sentences of docs/paper.md about MultiCifar100, from the results; the page's command writes
them.
"""

from __future__ import annotations

import re
import textwrap
from statistics import fmean

from . import multicifar, multicifar_portfolio, printed
from .claims import judged
from .rows import HERE, Row

PAPER = HERE.parent / "docs" / "paper.md"
LINK = "[The full record](appendix/reproduction.md)"
WIDTH = 160
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BULLET = re.compile(r"^\* \*\*MultiCifar100\*\*.*?(?=^\* )", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(
    r"^\[[^]]*\]\([^)]*reproduction\.md\) has every.*?no copy\.\n", re.MULTILINE | re.DOTALL
)


def written(text: str) -> str:
    """Return the text of docs/paper.md with its two sentences about MultiCifar100 written anew from
    the results. Without runs of MultiCifar100 the text stays as it is.
    """
    rows = multicifar.column().rows
    done, _ = multicifar.best_counts([*rows.values()])
    if not done:
        return text
    text = _replaced(text, _BULLET, bullet(rows, done), indent="  ")
    return _replaced(text, _NOT_RUN, not_run(done), indent="")


def _replaced(text: str, pattern: re.Pattern[str], sentence: str, indent: str) -> str:
    """Replace the only match of a pattern by a sentence; `indent` begins all its lines but the
    first.
    """
    if len(pattern.findall(text)) != 1:
        raise ValueError(
            f"a page has not exactly one place for {sentence.split(':', maxsplit=1)[0]!r}; restore it"
        )
    lines = textwrap.fill(sentence, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return pattern.sub(lambda _: f"{lines}\n", text)


def bullet(rows: dict[str, Row], done: int) -> str:
    common = set.intersection(*(set(row.runs) for row in rows.values()))
    ours = f"{100 * fmean(rows[multicifar.FLIP].test[name] for name in common):.1f}"
    all_ = multicifar.SUPERCLASSES
    if done == all_:
        how_many = f"all {all_} superclasses"
    else:
        how_many = f"{done} of {all_} superclasses so far"
    return (
        f"* **MultiCifar100** (Table 2, {how_many}, one seed): the paper's best row, (1, 1, −1), has {ours} % here and "
        f"{printed.MULTICIFAR[multicifar.FLIP][1]} % in the paper. Here it is {_to_multitask(rows)}."
        f"{_best(rows, done)}{_portfolio(rows)}"
    )


def _to_multitask(rows: dict[str, Row]) -> str:
    ((_, difference, verdict),) = (
        each
        for each in judged(multicifar.CLAIMS, rows)
        if (each[0].first, each[0].second) == (multicifar.FLIP, "multitask")
    )
    assert difference is not None
    where = "below" if difference.mean < 0 else "above"
    sure = "not significant" if verdict == "not significant" else "significant"
    return f"{abs(100 * difference.mean):.1f} points {where} tuned multitask ({sure})"


def _best(rows: dict[str, Row], done: int) -> str:
    """On how many superclasses the paper's row is best, once all of them are there."""
    if done < multicifar.SUPERCLASSES:
        return ""
    _, counts = multicifar.best_counts([rows[label] for label in printed.MULTICIFAR])
    return (
        f" Among the paper's rows it is the best on {counts[multicifar.FLIP]:.3g} of {done} superclasses; a tie counts as half "
        f"for each of the two rows. In the paper it is the best on {printed.MULTICIFAR_BEST}."
    )


def _portfolio(rows: dict[str, Row]) -> str:
    """A sentence about the portfolio, once all of its superclasses are there."""
    done = multicifar_portfolio.lines()
    if len(done) < len(multicifar_portfolio.OTHERS):
        return ""
    single = f"{100 * multicifar_portfolio.rows()['single'].summary.mean:.1f}"
    there = f"{100 * fmean(rows['multitask'].test[line['part']] for line in done):.1f}"
    return (
        f" A separate test covers {_WORDS[len(done)]} superclasses. There one network of `strategy: portfolio` has {single} % "
        f"and tuned multitask {there} %."
    )


def not_run(done: int) -> str:
    left = multicifar.SUPERCLASSES - done
    missing = f"{_WORDS[left] if left < len(_WORDS) else left} superclass{'es' if left > 1 else ''} of MultiCifar100, and "
    return (
        f"{LINK} has every table and figure next to the paper's, with intervals and an outcome "
        f"for each claim. It also lists what was not run: {missing if left else ''}CheXpert itself, because we had no copy."
    )


def write() -> None:
    PAPER.write_text(written(PAPER.read_text(encoding="utf-8")), encoding="utf-8")
