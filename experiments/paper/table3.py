"""The section on Tables 3 and 5: photographs for chest X-rays."""

from __future__ import annotations

from . import printed
from .claims import Claim, claim_table
from .rows import Part, part
from .tables import beside_paper, beyond_paper, figure_cell, searched, table

NAME = "table3-chest-xray"
ABOUT = """\
Figures are the mean area under the ROC curve over five findings. Open chest X-rays (NIH ChestX-ray14 at 64 pixels) replace
CheXpert, and 10,000 photographs of Tiny ImageNet replace ImageNet. We ask the paper's question on other data, so the two
columns of figures need not agree; only the order of rows should. The network is first pre-trained on the photographs. It then
trains on them again, guided by the X-rays, and is fine-tuned on the X-rays. The protocol below says what else differs."""
BEYOND = """\
The paper reaches 83.3 after 100,000 photographs and does not say with which Eta; with 50,000 its best was (1, 0, −1). Beyond
Table 3, with the same search:"""
MORE = {
    "flip-primary_weight=0": "pretrained + ATTITTUD (1, 1, −1)",
    "orthogonal-primary_weight=0": "pretrained + ATTITTUD (1, 0, 0)",
    "pretrain": "pretrained + the same photographs unguided",
    "multitask": "pretrained + multitask",
    "auto": "pretrained + `auto`",
    "none, multitask": "multitask without pre-training",
}
CLAIMS = [
    Claim("pre-training on photographs beats none", "primary_only", "none", 3.1),
    Claim(
        "ATTITTUD (1, 0, −1) beats pretrained",
        "orthogonal_flip-primary_weight=0",
        "primary_only",
        1.9,
    ),
    Claim("ATTITTUD (1, 1, −1) beats pretrained", "flip-primary_weight=0", "primary_only"),
    Claim("ATTITTUD (1, 0, 0) beats pretrained", "orthogonal-primary_weight=0", "primary_only"),
    Claim(
        "ATTITTUD (1, 0, −1) beats the same photographs unguided",
        "orthogonal_flip-primary_weight=0",
        "pretrain",
    ),
    Claim("ATTITTUD (1, 0, −1) beats multitask", "orthogonal_flip-primary_weight=0", "multitask"),
    Claim("`auto` beats pretrained", "auto", "primary_only"),
]


def section() -> str:
    results = everything()
    sections = [
        "## Tables 3 and 5, chest X-rays",
        ABOUT,
        beside_paper(results, printed.TABLE3, same_data=False),
        BEYOND,
        beyond_paper(results, MORE),
        claim_table(CLAIMS, results.rows),
        "### By finding",
        "AUC: mean ± half of the 95 % interval over seeds. The paper's figures are on CheXpert.",
        by_finding(results),
        "### What the search on X-rays saw",
        "Mean AUC on the 563 validation images of the first seed. Each row chose its best settings; the loss broke ties.",
        searched(results),
    ]
    return "\n\n".join(sections)


def everything() -> Part:
    """All rows under one roof: those without pre-training are called none."""
    results = part(NAME, NAME)
    none = part(NAME, f"{NAME}-none")
    for label, name in {"primary_only": "none", "multitask": "none, multitask"}.items():
        results.rows[name] = none.rows[label]
        results.tried[name] = none.tried[label]
    return results


PAPERS_ROWS = {
    "none": ["No-Pretraining"],
    "primary_only": ["Pretrained"],
    "orthogonal_flip-primary_weight=0": ["Pretrained + Ours (50k)", "Pretrained + Ours (100k)"],
}
"""The rows of the paper's Table 5 that stand above each of ours."""


def by_finding(results: Part) -> str:
    lines = []
    for label, name in (printed.names(printed.TABLE3) | MORE).items():
        for theirs in PAPERS_ROWS.get(label, ()):
            cells = [f"{mean} ± {half}" for mean, half in printed.TABLE5[theirs]]
            lines.append([f"paper: {theirs}", *cells])
        row = results.rows[label]
        cells = [figure_cell(row, f"auc/{finding}") for finding in printed.FINDINGS]
        lines.append([f"ours: {name}", *cells])
    return table(["row", *printed.FINDINGS], lines)
