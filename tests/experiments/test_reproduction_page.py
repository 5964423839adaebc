"""docs/appendix/reproduction.md follows from the committed results, and docs/paper.md quotes them."""

import re
import statistics

from experiments.paper import multicifar, multicifar_portfolio, printed
from experiments.paper.page import PAGE, page


def test_page_is_what_the_results_give():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m experiments.paper.page`"


def test_the_page_about_the_paper_quotes_the_results_on_multicifar100():
    rows = multicifar.column().rows
    ours = rows[multicifar.FLIP]
    single = multicifar_portfolio.rows()["single"]
    others = [rows["multitask"].test[line["part"]] for line in multicifar_portfolio.lines()]
    difference = ours.minus(rows["multitask"])
    _, best = multicifar.best_counts([rows[label] for label in printed.MULTICIFAR])
    assert difference.p < 0.05
    text = (PAGE.parents[1] / "paper.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^\* \*\*MultiCifar100.*?(?=^\* )", text, re.MULTILINE | re.DOTALL)
    sentence = " ".join(lines.split())
    assert f"has {100 * ours.summary.mean:.1f} % here" in sentence
    assert f"{-100 * difference.mean:.1f} points below tuned multitask" in sentence
    assert f"best on {best[multicifar.FLIP]:g} of 20 superclasses" in sentence
    assert f"has {100 * single.summary.mean:.1f} % and tuned multitask" in sentence
    assert f"multitask {100 * statistics.fmean(others):.1f} %." in sentence
