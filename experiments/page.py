"""docs/reproduction.md and its plots from the committed results: `python -m experiments.page`."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from attittud.recipes.reproduce.results import read_lines
from attittud.recipes.statistics import summarise

from . import paper
from .claims import MISSING, Claim, against_paper, claim_table, summary_cells, table
from .rows import HERE, RESULTS, Part, Row, part
from .tables import beside_paper, beyond_paper, searched

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PLOTS = DOCS / "reproduction.md", DOCS / "reproduction"

ABOUT = """\
# Do the paper's results hold?

This page is made by `python -m experiments.page` from the runs in `experiments/results/`; the protocols at its end,
written before them, say how they were made and what differs from the paper. To run one again, from a checkout:

    attittud reproduce                                     # lists the experiments, and the data each needs
    attittud reproduce table2-cat-vs-dog --data FOLDER     # with CIFAR-10's parquet files from the dataset hub

Finished runs are not repeated; move `experiments/results/` away to start from scratch. `--part table2-cat-vs-dog` runs
the five rows of the paper alone; `--workers 2` shares the runs among two processes.

Figures are on test, in per cent: accuracy where nothing else is said. std has ddof = 1, intervals are 95 % t-intervals over
seeds, differences are taken seed by seed (paired t-test), p-values are Holm-corrected within a table. The paper's ± is a 95 %
interval over 5 seeds; *agrees* means that the two intervals meet. The runs of the search that had the chosen settings are among
the seeds: their validation figures chose, their test figures did not."""

TABLE2_CLAIMS = [
    Claim("vanilla pre-training beats none", "pretrain", "primary_only", 10.9),
    Claim("multitask beats vanilla pre-training", "multitask", "pretrain", 0.8),
    Claim("PCGrad beats vanilla pre-training (its table says the opposite)", "pcgrad", "pretrain", -0.3),
    Claim("ATTITTUD (1, 0, 0) beats vanilla pre-training", "orthogonal", "pretrain", 2.6),
    Claim("ATTITTUD (1, 0, 0) beats PCGrad", "orthogonal", "pcgrad", 2.9),
    Claim("ATTITTUD (1, 0, 0) beats multitask", "orthogonal", "multitask", 1.8),
]
SAMPLES = """\
Accuracy against m, with rank 5 and (1, 0, 0), primary_weight 0.01. The paper finds the mean flat and the variance falling
with m."""
RANK = "The paper finds small ranks better where data are scarce, and larger ones where they are not."
CAPTURED = """\
Share of the squared norm inside the span in per cent, mean over the guided phase of the runs of Table 4: of the auxiliary
gradient, and of the primary gradient of other examples than those that built the basis. The paper finds large shares for its
randomized SVD and small ones for `random` and `mean`; `canonical` has all by definition."""
NO_CIFAR100 = """\
CIFAR-100 was not at hand. `attittud reproduce table2-multicifar100 --data FOLDER` runs it; the figures will be means over the
20 superclasses, with standard deviation and interval over them."""
FURTHER = [f"table2-cat-vs-dog-{name}" for name in ("more", "zero", "15")]
MORE = {
    "orthogonal_flip": "ATTITTUD (1, 0, −1)",
    "drop_harmful": "ATTITTUD (1, 1, 0)",
    "flip": "ATTITTUD (1, 1, −1)",
    "orthogonal-primary_weight=0": "ATTITTUD (1, 0, 0), primary_weight 0",
    "orthogonal_flip-primary_weight=0": "ATTITTUD (1, 0, −1), primary_weight 0",
    "drop_harmful-primary_weight=0": "ATTITTUD (1, 1, 0), primary_weight 0",
    "flip-primary_weight=0": "ATTITTUD (1, 1, −1), primary_weight 0",
    "auto": "auto, judges cut from the 100 labels",
    "pretrain_as_released": "Vanilla pre-training as released",
    "cosine_gate": "cosine gate (Du et al. 2018)",
    "bloop": "Bloop (Hsieh et al. 2024)",
}
ATTITTUD = ["orthogonal", *(label for label, name in MORE.items() if name.startswith("ATTITTUD"))]
MORE_CLAIMS = [
    Claim("vanilla pre-training beats itself as released", "pretrain", "pretrain_as_released"),
    *(Claim(f"{MORE[label]} beats multitask", label, "multitask") for label in ATTITTUD[1:]),
    Claim("ATTITTUD (1, 0, 0) beats the cosine gate", "orthogonal", "cosine_gate"),
    Claim("ATTITTUD (1, 0, 0) beats Bloop", "orthogonal", "bloop"),
    Claim("auto beats multitask", "auto", "multitask"),
]


def page() -> str:
    """The whole page; what was not run yet says so."""
    sections = [ABOUT, table2(), table4(), samples(), rank(), captured(), multicifar(), costs(), protocol()]
    return "\n\n".join(sections) + "\n"


def table2() -> str:
    found = part("table2-cat-vs-dog", "table2-cat-vs-dog", also=FURTHER)
    best = best_two(found)
    names = " and ".join(f"`{label}`" for label in best) if best else f"{MISSING}, as their runs are not complete"
    return "\n\n".join(
        [
            "## Table 2, Cat-vs-Dog",
            beside_paper(found, paper.TABLE2),
            claim_table(TABLE2_CLAIMS, found.rows),
            "Beyond the paper, with the same search:",
            beyond_paper(found, MORE),
            claim_table(MORE_CLAIMS, found.rows),
            f"The two rows of ATTITTUD with the best mean on validation over the first five seeds: {names}.",
            "### What the search saw",
            "Accuracy on the 200 validation images of the first seed; each chose its best, ties by loss.",
            searched(found),
        ]
    )


def best_two(found: Part) -> list[str]:
    """Labels of the rows of ATTITTUD that get more seeds, chosen by validation; none until all rows have five seeds."""
    seeds = range(5)
    rows = [found.rows[label] for label in ATTITTUD if label in found.rows]
    if len(rows) < len(ATTITTUD) or any(seed not in row.runs for row in rows for seed in seeds):
        return []
    return [row.label for row in sorted(rows, key=lambda row: row.validation(seeds), reverse=True)[:2]]


def table4() -> str:
    rows = table4_rows()
    lines, best = [], {}
    for basis, (name, mean, half) in paper.TABLE4.items():
        pair = [rows[label] for label in bases(basis) if label in rows]
        # As in the paper: of the two Etas the one that is better on validation, over the seeds that both have.
        seeds = sorted(set.intersection(*(set(row.runs) for row in pair))) if len(pair) == 2 else []
        chosen = max(pair, key=lambda row: row.validation(seeds)) if seeds else None
        if chosen:
            best[basis] = chosen
        ours = chosen.summary if chosen else None
        met = against_paper(ours, mean, half) if ours and mean is not None else ""
        eta = "" if chosen is None else "(1, 1, −1)" if chosen.label.startswith("flip") else "(1, 1, 0)"
        lines.append([f"`{basis}`", name, "" if mean is None else f"{mean} ± {half}", *summary_cells(ours), met, eta])
    claims = [
        Claim(f"`sketch` beats `{b}`", "sketch", b, round(62.2 - paper.TABLE4[b][1], 1))
        for b in ("canonical", "random", "mean")
    ]
    claims += [Claim(f"`{b}` beats `sketch`", b, "sketch") for b in ("svd", "exact", "sketch, mean included")]
    return "\n\n".join(
        [
            "## Table 4, bases",
            table(["basis", "in the paper", "paper", "ours", "std", "95 %", "n", "intervals", "Eta"], lines),
            claim_table(claims, best),
        ]
    )


def table4_rows() -> dict[str, Row]:
    return part("table4-bases", "table4-bases-exact").rows | part("table4-bases", "table4-bases").rows


def bases(basis: str) -> list[str]:
    """Labels of the two rows of a basis."""
    names = ["drop_harmful-primary_weight=0.01", "flip-primary_weight=0.01"]
    if basis == "sketch":
        return names
    if "," in basis:
        return [f"{name}-include_mean=True" for name in names]
    return [f"{name}-basis={basis}" for name in names]


def numbered(rows: dict[str, Row], key: str, usual: int) -> dict[int, Row]:
    """Rows of `orthogonal` by the number that their label gives for `key`."""
    found = {}
    for label, row in rows.items():
        if label.startswith("orthogonal"):
            text = label.partition(f"{key}=")[2].partition("-")[0]
            found[int(text) if text else usual] = row
    return dict(sorted(found.items()))


def samples() -> str:
    rows = numbered(part("figure2-samples", "figure2-samples").rows, "basis_batch", 100)
    lines = [[str(m), *summary_cells(rows[m].summary if m in rows else None)] for m in (5, 10, 25, 50, 100)]
    claims = [Claim("100 examples are better than 5 (the paper: the mean is flat, the variance falls)", "100", "5")]
    return "\n\n".join(
        [
            "## Figure 2, left: examples that build the basis",
            SAMPLES,
            table(["m", "ours", "std", "95 %", "n"], lines),
            claim_table(claims, {str(m): row for m, row in rows.items()}),
            *plot("samples"),
        ]
    )


def rank() -> str:
    parts = {size: numbered(part("figure2-rank", f"figure2-rank-{size}").rows, "rank", 10) for size in (50, 1000)}
    lines = [
        [str(k), *(cell for rows in parts.values() for cell in summary_cells(rows[k].summary if k in rows else None))]
        for k in (1, 5, 10, 20, 40)
    ]
    rows = {f"{size}/{k}": row for size, found in parts.items() for k, row in found.items()}
    claims = [
        Claim("with 50 per class, rank 5 is better than 40", "50/5", "50/40"),
        Claim("with 1,000 per class, rank 40 is better than 5", "1000/40", "1000/5"),
    ]
    head = ["rank", "50 per class", "std", "95 %", "n", "1,000 per class", "std", "95 %", "n"]
    return "\n\n".join(
        [
            "## Figure 2, right: the rank of the basis",
            RANK,
            table(head, lines),
            claim_table(claims, rows),
            *plot("rank"),
        ]
    )


def captured() -> str:
    rows = table4_rows()
    lines = []
    for basis in paper.TABLE4:
        if basis == "canonical":
            continue  # all of every gradient, by definition
        found = [shares(rows[label]) for label in bases(basis) if label in rows]
        cells = [f"{100 * fmean(values):.2f}" for values in zip(*found, strict=True)] if found else [MISSING, ""]
        runs = sum(len(rows[label].runs) for label in bases(basis) if label in rows)
        lines.append([f"`{basis}`", *cells, str(runs)])
    return "\n\n".join(
        [
            "## Figure 3: how much of a gradient lies in the basis",
            CAPTURED,
            table(["basis", "auxiliary", "primary", "runs"], lines),
            *plot("captured"),
        ]
    )


def shares(row: Row) -> tuple[float, float]:
    """Mean captured share of the auxiliary and of the primary gradient."""
    curves = [line["curves"] for line in row.runs.values()]
    auxiliary, primary = (
        [value for curve in curves for value in curve[f"captured_{side}"]] for side in ("auxiliary", "primary")
    )
    return fmean(auxiliary), fmean(primary)


def multicifar() -> str:
    lines = read_lines(RESULTS / "table2-multicifar100.jsonl")
    names = sorted({line["part"] for line in lines})
    found = {name: part("table2-multicifar100", name, "table2-multicifar100").rows for name in names}
    rows = []
    for label, (name, mean) in paper.MULTICIFAR.items():
        have = [next((row for key, row in found[n].items() if key.startswith(label)), None) for n in names]
        means = [row.summary.mean for row in have if row is not None]
        ours = summary_cells(summarise(means)) if means else summary_cells(None)
        rows.append([name, str(mean), *ours])
    return "\n\n".join(
        [
            "## Table 2, MultiCifar100",
            f"Mean over {len(names)} of 20 superclasses." if names else NO_CIFAR100,
            table(["row", "paper", "ours", "std", "95 %", "n"], rows),
        ]
    )


def costs() -> str:
    """Minutes of the device by experiment and machine: of runs side by side, each has its share."""
    seen: set[str] = set()
    sums: dict[tuple[str, ...], list[float]] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in read_lines(path):
            if line["fingerprint"] not in seen:
                seen.add(line["fingerprint"])
                about: dict[str, Any] = line["made_with"]
                shared = about.get("side_by_side", 1)
                key = (
                    path.stem,
                    about["device"],
                    f"torch {about['torch']}, revision {about.get('revision', 'unknown')}",
                    "yes" if about["repeatable"] else "no",
                    str(shared),
                )
                sums.setdefault(key, []).append(line["seconds"] / shared)
    lines = [[*key, str(len(values)), f"{sum(values) / 60:.1f}"] for key, values in sums.items()]
    head = ["experiment", "device", "made with", "repeatable bit by bit", "side by side", "runs", "minutes"]
    return "## What it cost\n\n" + (table(head, lines) if lines else f"Nothing has been run: {MISSING}.")


def protocol() -> str:
    """The protocols as they were written down, below this page's headings."""
    texts = []
    for path in sorted(HERE.glob("protocol*.md")):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        texts.append(f"#{title}\n{text.replace(chr(10) + '## ', chr(10) + '### ')}".rstrip())
    return "\n\n".join(texts)


def plot(name: str) -> list[str]:
    return [f"![{name}](reproduction/{name}.svg)"] if (PLOTS / f"{name}.svg").exists() else []


def main() -> None:
    from .plots import draw

    draw(PLOTS)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
