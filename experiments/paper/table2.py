"""Table 2, Cat-vs-Dog: the paper's rows, those beyond it, and the two that get more seeds."""

from __future__ import annotations

from statistics import fmean

from . import printed
from .claims import (
    MISSING,
    Claim,
    against_multitask,
    claim_table,
    difference_cells,
    judged,
    leads,
    so_many,
    table,
)
from .plots import shown
from .rows import Part, Row, part
from .tables import beside_paper, beyond_paper, searched

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
FURTHER = [f"table2-cat-vs-dog-{name}" for name in ("more", "zero", "15")]
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
    Claim(f"ATTITTUD as validation chose it beats {name}", CHOSEN, label, points)
    for name, label, points in (
        ("vanilla pre-training", "pretrain", 2.6),
        ("PCGrad", "pcgrad", 2.9),
        ("multitask", "multitask", 1.8),
    )
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


def table2() -> str:
    results = everything()
    best = best_two(results)
    if best:
        names = " and ".join(NAMES[label] for label in best)
    else:
        names = f"{MISSING}, as their runs are not complete"
    rows = with_chosen(results)
    return "\n\n".join(
        [
            "## Table 2, Cat-vs-Dog",
            *(each for figure in shown("cat-vs-dog") for each in (figure, UNCORRECTED)),
            beside_paper(results, printed.TABLE2),
            SEEDS,
            claim_table(TABLE2_CLAIMS, rows),
            "Beyond the paper, with the same search:",
            beyond_paper(results, MORE),
            RELEASED,
            claim_table(MORE_CLAIMS, rows),
            f"The two rows of ATTITTUD with the best mean on validation over the first five seeds: {names}.",
            "The paper reports the row that validation chose. The first of these two rows is our counterpart:",
            claim_table(CHOSEN_CLAIMS, rows),
            "### By subset",
            SUBSETS,
            by_subset(results),
            "### What the search saw",
            "Accuracy on the 200 validation images of the first seed. Each row chose its best settings; the loss broke ties.",
            searched(results),
        ]
    )


def outcome(results: Part) -> list[str]:
    """What the claims say together, for those who read no table; nothing until all have been
    judged.
    """
    rows = with_chosen(results)
    judgements = [
        each
        for claims in (TABLE2_CLAIMS, CHOSEN_CLAIMS, MORE_CLAIMS)
        for each in judged(claims, rows)
    ]
    if any(difference is None for _, difference, _ in judgements):
        return []
    differences, better, worse = against_multitask(judgements, ATTITTUD)
    points, outside = leads(judgements, ("orthogonal", CHOSEN))
    fair = rows["pretrain"]
    released = rows["pretrain_as_released"]
    gained, interval, n, _ = difference_cells(fair.minus(released))
    common = [seed for seed in released.test if seed in fair.test]
    before, after = (100 * fmean(row.test[seed] for seed in common) for row in (released, fair))
    lead = printed.TABLE2["orthogonal"][1] - printed.TABLE2["pretrain"][1]
    multitask = f"""\
* On Cat-vs-Dog, we compare {len(differences)} rows of ATTITTUD with a multitask that had the same search: {so_many(better)}
  significantly better and {so_many(worse)} significantly worse. They differ from multitask by {min(differences):+.1f} to
  {max(differences):+.1f} points."""
    leading = f"""\
* On Cat-vs-Dog, the paper's ATTITTUD leads vanilla pre-training, PCGrad and multitask by {min(points)} to {max(points)} points.
  These leads are above our 95 % interval in {outside} of {len(points)} comparisons, for (1, 0, 0) and for the row that
  validation chose."""
    pretrain = f"""\
* On Cat-vs-Dog, vanilla pre-training has {before:.1f} with the rule of the authors' release, by which the loss of an
  untrained head chooses the model. With the rule of all other rows it has {after:.1f}: {gained} points over the same {n} seeds
  (95 % {interval}). The paper's lead over vanilla pre-training is {lead:.1f}."""
    return ["\n".join([multitask, leading, pretrain])]


def by_subset(results: Part) -> str:
    """Rows that have more than one subset; each mean has its count of seeds."""
    lines = []
    for label, name in {
        **{label: name for label, (name, *_) in printed.TABLE2.items()},
        **MORE,
    }.items():
        values: dict[int, list[float]] = {}
        for seed, value in results.rows[label].test.items() if label in results.rows else ():
            values.setdefault(results.rows[label].runs[seed]["split"], []).append(value)
        if len(values) > 1:
            cells = [
                f"{100 * fmean(values[s]):.1f} ({len(values[s])})" if s in values else ""
                for s in range(3)
            ]
            lines.append([name, *cells])
    return table(["row", "subset 0", "subset 1", "subset 2"], lines) if lines else MISSING


def best_two(results: Part) -> list[str]:
    """Labels of the rows of ATTITTUD that get more seeds, chosen by validation; none until all rows
    have five seeds.
    """
    seeds = range(5)
    rows = [results.rows[label] for label in ATTITTUD if label in results.rows]
    if not all(results.searched(label) for label in ATTITTUD) or not all(
        row.over(seeds) for row in rows
    ):
        return []
    whole = [row for row in rows if row.whole(seeds)]
    return [
        row.label for row in sorted(whole, key=lambda row: row.validation(seeds), reverse=True)[:2]
    ]


def with_chosen(results: Part) -> dict[str, Row]:
    """All that claims are about: with the best row of ATTITTUD on validation once that is known."""
    best = best_two(results)
    return results.claimed | ({CHOSEN: results.rows[best[0]]} if best else {})
