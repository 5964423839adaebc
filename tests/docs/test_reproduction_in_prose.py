"""README, docs/paper.md and docs/appendix/auto.md say about the paper's experiments what the committed results show."""

import re
import statistics

import pytest

from attittud_lab.config.load import load
from experiments.paper import multicifar, multicifar_portfolio, printed, table1, table3
from experiments.paper.claims import Claim, against_paper, judged, spread_falls
from experiments.paper.figure2 import RANK_CLAIMS, SAMPLES_CLAIMS, by_samples, rank_rows, samples_rows
from experiments.paper.rows import HERE
from experiments.paper.table2 import (
    ATTITTUD,
    CHOSEN,
    CHOSEN_CLAIMS,
    MORE_CLAIMS,
    TABLE2_CLAIMS,
    everything,
    with_chosen,
)
from experiments.paper.table4 import FIGURE3_CLAIMS, TABLE4_CLAIMS, best_rows, shares


def read(name: str) -> str:
    return " ".join((HERE.parent / name).read_text(encoding="utf-8").split())


@pytest.fixture
def said() -> str:
    """The text of the page that sums the reproduction up."""
    return read("docs/paper.md")


def test_commands_in_docs_name_configurations_that_can_be_run() -> None:
    """A file that others have as their base cannot, where it leaves the search to them."""
    found = [
        command.split()
        for path in (HERE.parent / "docs").rglob("*.md")
        for command in re.findall(
            r"attittud (?:train|compare) (experiments/[^`#]*)",
            " ".join(path.read_text(encoding="utf-8").split()),
        )
    ]
    assert ["strategy=auto" in words for _, *words in found] == [True]
    for file, *words in found:
        load(HERE.parent / file, words)


def test_pages_say_what_tables_1_and_3_show(said: str) -> None:
    assert "pre-training and guidance gained nothing over training without auxiliary data" in said
    verdicts = [verdict for _, _, verdict in judged(table3.CLAIMS, table3.rows().rows)]
    assert verdicts and set(verdicts) == {"not significant"}
    found = [
        verdict
        for task in ("imdb", "amazon")
        for labels_ in ("500", "full")
        for _, _, verdict in judged(table1.claims(task), table1.column(task, labels_).rows)
    ]
    assert f"none of {len(found)} comparisons on IMDB and Amazon reviews" in said
    assert set(found) == {"not significant"}


def test_pages_say_what_bases_show(said: str) -> None:
    found = {claim.text: verdict for claim, _, verdict in judged(TABLE4_CLAIMS, best_rows())}
    assert "a basis from primary examples beats the canonical one" in said
    assert found.pop("`sketch` beats `canonical`") == "holds"
    assert "But it gives no better accuracy than these two" in said
    assert set(found.values()) == {"not significant"}
    assert "captures far more of both gradients than a random basis or the mean gradient" in said
    assert {verdict for *_, verdict in judged(FIGURE3_CLAIMS, shares())} == {"holds"}
    tested = "Ranks 5 and 40 do not differ significantly, and neither do bases from 5 and from 100 examples"
    assert f"{tested}. Rank 1 does better than rank 40; we noticed this only afterwards" in said
    assert {verdict for *_, verdict in judged(RANK_CLAIMS, rank_rows())} == {"not significant"}
    seen = [rank_rows()[f"{size}/1"].minus(rank_rows()[f"{size}/40"]) for size in (50, 1000)]
    assert all(found is not None and found.p < 0.05 and found.mean > 0 for found in seen)
    assert [verdict for *_, verdict in judged(SAMPLES_CLAIMS, samples_rows())] == [
        "not significant, as the paper has it"
    ]
    assert spread_falls(by_samples())[1] == "not significant"


def test_pages_say_what_table_2_shows(said: str) -> None:
    rows = with_chosen(everything())
    of_paper = {label: rows[label].summary for label in printed.TABLE2}
    assert {summary.n for summary in of_paper.values()} == {15}
    met = {against_paper(of_paper[label], mean, half) for label, (_, mean, half) in printed.TABLE2.items()}
    assert met == {"agrees", "above"}
    assert len(of_paper) == 5
    methods = "the paper's five methods (four baselines and ATTITTUD)"
    assert f"with fifteen seeds the means of {methods} agree with the paper's or are above" in said
    agreeing = [
        label
        for label, (_, mean, half) in printed.TABLE2.items()
        if against_paper(of_paper[label], mean, half) == "agrees"
    ]
    assert agreeing == ["orthogonal"]
    assert "our four baselines are above the paper's, and our ATTITTUD agrees with the paper's" in said

    found = {
        (claim.first, claim.second): (100 * difference.mean, verdict)
        for claims in (TABLE2_CLAIMS, CHOSEN_CLAIMS, MORE_CLAIMS)
        for claim, difference, verdict in judged(claims, rows)
        if difference is not None
    }
    to_multitask = {label: result for (label, second), result in found.items() if second == "multitask"}
    assert all(verdict != "holds" for _, verdict in to_multitask.values())
    below, chosen, above = (to_multitask[label] for label in ("orthogonal", CHOSEN, "drop_harmful"))
    assert {verdict for _, verdict in (below, chosen, above)} == {"not significant"}
    assert max(to_multitask.values()) == above
    assert len(ATTITTUD) == 8 and set(ATTITTUD) < to_multitask.keys()
    assert "But none of the eight rows of ATTITTUD significantly beats tuned multitask." in said
    figures = f"{-below[0]:.1f} points below multitask, and the row that validation chose is {-chosen[0]:.1f} below"
    best = f"The best row, (1, 1, 0), is {above[0]:.1f} above. None of these differences is significant."
    assert f"(1, 0, 0) is {figures}. {best}" in said

    reversing = [result for label, result in to_multitask.items() if "flip" in label]
    lost = [-points for points, _ in reversing]
    assert (len(reversing), sum("opposite" in verdict for _, verdict in reversing)) == (4, 3)
    assert all(len(rows[label].test) == 5 for label in to_multitask if "flip" in label)
    assert (
        f"The rows that reverse the harmful part lose {min(lost):.1f} to {max(lost):.1f} points to multitask, with five seeds. "
        "Three of these four losses are significant." in said
    )
    for page, words in (
        (
            "docs/how-it-works.md",
            "own Cat-vs-Dog none of its four Etas significantly beats [tuned multitask](glossary.md#words). Etas that reverse",
        ),
        (
            "docs/coming-from.md",
            "neither one-sided PCGrad nor any of the paper's four Etas significantly beats tuned multitask",
        ),
    ):
        assert words in read(page)
    over = rows["pcgrad"].minus(rows["multitask"])
    assert over is not None and over.p > 0.05

    leads = [
        each for claims in (TABLE2_CLAIMS, CHOSEN_CLAIMS) for each in judged(claims, rows) if "ATTITTUD" in each[0].text
    ]
    points = sorted(claim.points for claim, *_ in leads if claim.points is not None)
    assert (
        f"In the paper ATTITTUD leads pre-training, PCGrad and multitask by {points[0]} to {points[-1]} points. Such leads are "
        "outside of our 95 % intervals" in said
    )
    assert all(100 * found.high < points[0] for _, found, _ in leads if found is not None) and len(points) == 6

    released = rows["pretrain_as_released"].test
    fair = statistics.fmean(rows["pretrain"].test[seed] for seed in released)
    as_released = (
        f"{100 * statistics.fmean(released.values()):.1f} % with the stopping rule of the paper's released code"
    )
    shared = f"{100 * fair:.1f} % with the rule that all methods share. With five seeds this difference is significant."
    vanilla = "In the paper (1, 0, 0) beats vanilla pre-training (on the auxiliary data alone) by 2.6 points."
    assert f"{vanilla} Here pre-training has {as_released}, and {shared}" in said
    assert len(released) == 5 and found["pretrain", "pretrain_as_released"][1] == "holds"


def test_pages_say_what_multicifar100_shows(said: str) -> None:
    rows = multicifar.column().rows
    common = [name for name in rows["multitask"].test if all(name in row.test for row in rows.values())]
    ours = f"{100 * statistics.fmean(rows[multicifar.FLIP].test[name] for name in common):.1f}"
    (lost,) = (
        -100 * found.mean
        for claim, found, verdict in judged(multicifar.CLAIMS, rows)
        if (claim.first, claim.second) == (multicifar.FLIP, "multitask") and found is not None and "opposite" in verdict
    )
    assert f"(Table 2, {'all 20' if len(common) == 20 else f'{len(common)} of 20'} superclasses" in said
    both = f"has {ours} % here and {printed.MULTICIFAR[multicifar.FLIP][1]} % in the paper"
    assert (
        f"the paper's best row, (1, 1, −1), {both}. Here it is {lost:.1f} points below tuned multitask (significant)"
        in said
    )


def test_the_limits_are_those_of_the_results() -> None:
    """Other tests hold that no row of ATTITTUD beats tuned multitask on Cat-vs-Dog, and that (1, 1, −1) is below it."""
    limits, rows, lines = read("README.md"), multicifar.column().rows, multicifar_portfolio.lines()
    assert "None was shown to beat tuned multitask on [the paper's images](docs/paper.md)" in limits
    to_multitask = [difference for row in rows.values() if (difference := row.minus(rows["multitask"])) is not None]
    assert to_multitask and not any(each.mean > 0 and each.p < 0.05 for each in to_multitask)
    assert "The portfolio does not always win" in limits
    portfolio = 100 * multicifar_portfolio.rows()["single"].summary.mean
    multitask = 100 * statistics.fmean(rows["multitask"].test[line["part"]] for line in lines)
    assert len(lines) == 4 and portfolio < multitask
    both = f"{portfolio:.1f} % and tuned multitask {multitask:.1f} %"
    assert f"on four superclasses of MultiCifar100 its network has {both}" in read("docs/portfolio.md")
    assert f"one network of `strategy: portfolio` has {both}" in read("docs/paper.md")


def test_the_table_of_outcomes_follows_the_results() -> None:
    """The rows that the tests above do not hold."""
    text = "vanilla pre-training beats none"
    for claims, rows in ((TABLE2_CLAIMS, with_chosen(everything())), (multicifar.CLAIMS, multicifar.column().rows)):
        assert {claim.text: verdict for claim, _, verdict in judged(claims, rows)}[text] == "holds"
    assert (
        "| Pre-training on auxiliary data beats training without it, on Cat-vs-Dog and MultiCifar100 | holds |"
        in read("docs/paper.md")
    )


def test_the_docs_report_auto_on_cat_vs_dog_correctly(said: str) -> None:
    rows = everything().rows
    seeds = rows["auto"].test  # other rows have more of them, and means of other seeds are no comparison
    auto, alone, multitask, pretrain = (
        f"{100 * statistics.fmean(rows[name].test[seed] for seed in seeds):.1f}"
        for name in ("auto", "primary_only", "multitask", "pretrain")
    )
    in_short = f"has {auto} %, and training without auxiliary data has {alone}. Tuned multitask has {multitask}"
    assert in_short in read("README.md")
    assert f"it has {auto} %, training without auxiliary data {alone} and tuned multitask {multitask}." in said
    ((_, found, verdict),) = judged([Claim("auto beats multitask", "auto", "multitask")], rows)
    assert found is not None and "opposite is significant" in verdict
    assert f"`auto` finds nothing and loses {-100 * found.mean:.1f} points to tuned multitask" in read(
        "docs/which-weights.md"
    )
    record = read("docs/appendix/auto.md")
    means = f"| `auto` | {auto} | | `primary_only` | {alone} | | multitask with one tuned weight | {multitask} |"
    assert (
        f"{means} | pre-training | {pretrain} |" in record and len(seeds) == 5 and "answers and five seeds:" in record
    )
    ends = f"{100 * found.mean:.1f} points, from {100 * found.low:.1f} to {100 * found.high:.1f}"
    assert f"`auto` minus multitask is {ends}" in record
