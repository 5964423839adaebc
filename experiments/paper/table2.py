"""Table 2, Cat-vs-Dog: the paper's rows, those beyond it, and the two that get more seeds."""

from __future__ import annotations

from statistics import fmean

from . import printed
from .claims import Claim, against_multitask, claim_table, judged, leads, so_many
from .plots import shown
from .rows import Part, Row, part
from .tables import beside_paper, beyond_paper, difference_cells, searched, table

TABLE2_CLAIMS = [
    Claim("vanilla pre-training beats none", "pretrain", "primary_only", 10.9),
    Claim("multitask beats vanilla pre-training", "multitask", "pretrain", 0.8),
    Claim(
        "PCGrad beats vanilla pre-training (the paper's table says the opposite)",
        "pcgrad",
        "pretrain",
        -0.3,
    ),
    Claim("ATTITTUD (1, 0, 0) beats vanilla pre-training", "orthogonal", "pretrain", 2.6),
    Claim("ATTITTUD (1, 0, 0) beats PCGrad", "orthogonal", "pcgrad", 2.9),
    Claim("ATTITTUD (1, 0, 0) beats multitask", "orthogonal", "multitask", 1.8),
]
SEEDS = "Rows may have different numbers of seeds (n). Do not compare their means: the claims compare the seeds that both have."
UNCORRECTED = "Each interval is for a single comparison; the p-values of the claims are corrected for the number of claims."
RELEASED = """\
*As released* is vanilla pre-training with the rule of the authors' release: the primary head is not trained during
pre-training, and the lowest loss of that head chooses the model. In the other row of vanilla pre-training the head learns
during pre-training, on detached features. There the last model, or the best by accuracy, is kept, as in all other rows. Each
of the two rows has the settings that its own search chose."""
SUBSETS = """\
Each seed has one of three subsets of 100 training images. The table has the mean test accuracy by subset. The intervals above
treat all seeds alike, so they are about these three subsets only."""
FURTHER = ("table2-cat-vs-dog-more", "table2-cat-vs-dog-zero", "table2-cat-vs-dog-15")
MORE = {
    "orthogonal_flip": "ATTITTUD (1, 0, −1)",
    "drop_harmful": "ATTITTUD (1, 1, 0)",
    "flip": "ATTITTUD (1, 1, −1)",
    "orthogonal-primary_weight=0": "ATTITTUD (1, 0, 0), primary_weight 0",
    "orthogonal_flip-primary_weight=0": "ATTITTUD (1, 0, −1), primary_weight 0",
    "drop_harmful-primary_weight=0": "ATTITTUD (1, 1, 0), primary_weight 0",
    "flip-primary_weight=0": "ATTITTUD (1, 1, −1), primary_weight 0",
    "auto": "auto, judged by validation images",
    "pretrain_as_released": "Vanilla pre-training as released",
    "cosine_gate": "cosine gate (Du et al. 2018)",
    "bloop": "Bloop (Hsieh et al. 2024)",
}
NAMES = {"orthogonal": "ATTITTUD (1, 0, 0)"} | MORE
ATTITTUD = ["orthogonal", *(label for label, name in MORE.items() if name.startswith("ATTITTUD"))]
CHOSEN = "chosen"
CHOSEN_CLAIMS = [
    Claim("ATTITTUD as validation chose it beats vanilla pre-training", CHOSEN, "pretrain", 2.6),
    Claim("ATTITTUD as validation chose it beats PCGrad", CHOSEN, "pcgrad", 2.9),
    Claim("ATTITTUD as validation chose it beats multitask", CHOSEN, "multitask", 1.8),
]
MORE_CLAIMS = [
    Claim("vanilla pre-training beats itself as released", "pretrain", "pretrain_as_released"),
    *(Claim(f"{MORE[label]} beats multitask", label, "multitask") for label in ATTITTUD[1:]),
    Claim("ATTITTUD (1, 0, 0) beats the cosine gate", "orthogonal", "cosine_gate"),
    Claim("ATTITTUD (1, 0, 0) beats Bloop", "orthogonal", "bloop"),
    Claim("auto beats multitask", "auto", "multitask"),
]


def everything() -> Part:
    """All parts together: they have the same search, and further strategies or seeds."""
    return part("table2-cat-vs-dog", "table2-cat-vs-dog", also=FURTHER)


def section() -> str:
    results = everything()
    rows = with_chosen(results)
    best = " and ".join(NAMES[label] for label in best_two(results))
    sections = [
        "## Table 2, Cat-vs-Dog",
        shown("cat-vs-dog"),
        UNCORRECTED,
        beside_paper(results, printed.TABLE2),
        SEEDS,
        claim_table(TABLE2_CLAIMS, rows),
        "Beyond the paper, with the same search:",
        beyond_paper(results, MORE),
        RELEASED,
        claim_table(MORE_CLAIMS, rows),
        f"The two rows of ATTITTUD with the best mean on validation over the first five seeds: {best}.",
        "The paper reports the row that validation chose. The first of these two rows is our counterpart:",
        claim_table(CHOSEN_CLAIMS, rows),
        "### By subset",
        SUBSETS,
        by_subset(results),
        "### What the search saw",
        "Accuracy on the 200 validation images of the first seed. Each row chose its best settings; the loss broke ties.",
        searched(results),
    ]
    return "\n\n".join(sections)


def summed_up(results: Part) -> str:
    """What the claims say together, for those who read no table."""
    rows = with_chosen(results)
    judgements = []
    for claims in (TABLE2_CLAIMS, CHOSEN_CLAIMS, MORE_CLAIMS):
        judgements += judged(claims, rows)
    differences, better, worse = against_multitask(judgements, ATTITTUD)
    points, outside = leads(judgements, ("orthogonal", CHOSEN))
    fair = rows["pretrain"]
    released = rows["pretrain_as_released"]
    gained, interval, n, _ = difference_cells(fair.minus(released))
    common = sorted(released.runs.keys() & fair.runs.keys())
    before = 100 * fmean(map(released.test.__getitem__, common))
    after = 100 * fmean(map(fair.test.__getitem__, common))
    lead = printed.TABLE2["orthogonal"][1] - printed.TABLE2["pretrain"][1]
    return f"""\
* On Cat-vs-Dog, we compare {len(differences)} rows of ATTITTUD with a multitask that had the same search: {so_many(better)}
  significantly better and {so_many(worse)} significantly worse. They differ from multitask by {min(differences):+.1f} to
  {max(differences):+.1f} points.
* On Cat-vs-Dog, the paper's ATTITTUD leads vanilla pre-training, PCGrad and multitask by {min(points)} to {max(points)} points.
  These leads are above our 95 % interval in {outside} of {len(points)} comparisons, for (1, 0, 0) and for the row that
  validation chose.
* On Cat-vs-Dog, vanilla pre-training has {before:.1f} with the rule of the authors' release, by which the loss of an
  untrained head chooses the model. With the rule of all other rows it has {after:.1f}: {gained} points over the same {n} seeds
  (95 % {interval}). The paper's lead over vanilla pre-training is {lead:.1f}."""


def by_subset(results: Part) -> str:
    """Rows that have more than one subset. Each mean has its count of seeds."""
    lines = []
    for label, name in (printed.names(printed.TABLE2) | MORE).items():
        row = results.rows[label]
        values: dict[int, list[float]] = {}
        for seed, value in row.test.items():
            values.setdefault(row.runs[seed]["split"], []).append(value)
        if len(values) > 1:
            cells = [f"{100 * fmean(values[n]):.1f} ({len(values[n])})" for n in sorted(values)]
            lines.append([name, *cells])
    return table(["row", "subset 0", "subset 1", "subset 2"], lines)


def best_two(results: Part) -> list[str]:
    """Labels of the rows of ATTITTUD that get more seeds, chosen by validation with the first five
    seeds, which all of them have.
    """
    seeds = range(5)
    whole = [label for label in ATTITTUD if results.rows[label].has(seeds)]
    whole.sort(key=lambda label: results.rows[label].validation(seeds), reverse=True)
    return whole[:2]


def with_chosen(results: Part) -> dict[str, Row]:
    """All that claims are about: with the best row of ATTITTUD on validation."""
    return results.rows | {CHOSEN: results.rows[best_two(results)[0]]}
