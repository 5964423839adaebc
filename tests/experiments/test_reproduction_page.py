"""docs/appendix/reproduction.md follows from the committed results, and docs/paper.md quotes them."""

import re

from experiments.paper import multicifar
from experiments.paper.page import PAGE, page


def test_page_is_what_the_results_give():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m experiments.paper.page`"


def test_the_page_about_the_paper_quotes_the_results_on_multicifar100():
    results = multicifar.column()
    ours = results.rows[multicifar.FLIP]
    difference = ours.minus(results.rows["multitask"])
    best = multicifar.best_counts(multicifar.papers_rows(results))
    assert difference.p < 0.05
    record = multicifar.PORTFOLIO.read_text(encoding="utf-8")
    (means,) = re.findall(r"^\| mean \| (.*) \|", record, re.MULTILINE)
    _, _, _, multitask, _, _, _, single, *_ = means.split(" | ")
    text = (PAGE.parents[1] / "paper.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^\* \*\*MultiCifar100.*?(?=^\* )", text, re.MULTILINE | re.DOTALL)
    sentence = " ".join(lines.split())
    assert f"has {100 * ours.summary.mean:.1f} % here" in sentence
    assert f"{-100 * difference.mean:.1f} points below tuned multitask" in sentence
    assert f"best on {best[multicifar.FLIP]:g} of 20 superclasses" in sentence
    assert f"has {single} % and tuned multitask {multitask} %." in sentence
