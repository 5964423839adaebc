"""The numbers that the paper prints, in per cent (accuracy, F1 or AUC); ± is its 95 % interval of
the mean over 5 seeds.
"""

from __future__ import annotations

from collections.abc import Mapping


def names(table: Mapping[str, tuple[str, *tuple[object, ...]]]) -> dict[str, str]:
    """What the paper calls the rows of a table, by our labels."""
    return {label: name for label, (name, *_) in table.items()}


# Table 1 by task, under the names that table1.py gives to our rows. Its encoder is RoBERTa, its
# labels are all.
TABLE1 = {
    "imdb": {
        "primary_only": ("RoBERTa, plain fine-tuning", 95.4, 0.14),
        "pretrain": ("TAPT", 96.1, 0.11),
        "ours": ("Ours", 96.1, 0.09),
        "swapped, pretrain": ("TAPT, swapped text", 95.1, 0.10),
        "swapped, ours": ("Ours, swapped text", 95.4, 0.03),
    },
    "amazon": {
        "primary_only": ("RoBERTa, plain fine-tuning", 67.0, 0.50),
        "pretrain": ("TAPT", 70.3, 0.87),
        "ours": ("Ours", 70.1, 1.13),
        "swapped, pretrain": ("TAPT, swapped text", 67.8, 0.46),
        "swapped, ours": ("Ours, swapped text", 68.5, 1.01),
    },
}

# Row of Table 2: the strategy that stands for it here, its name in the paper, mean and half-width.
TABLE2 = {
    "primary_only": ("No pre-training", 53.6, 2.26),
    "pretrain": ("Vanilla pre-training", 64.5, 1.26),
    "pcgrad": ("PCGrad", 64.2, 1.10),
    "multitask": ("Multitask", 65.3, 1.35),
    "orthogonal": ("Ours, η = (1, 0, 0), η_prim = 0.01", 67.1, 1.31),
}

# Mean over the 20 superclasses, no interval printed. It says of its own row that it is best on 11
# of 20.
MULTICIFAR = {
    "primary_only": ("No pre-training", 57.6),
    "pretrain": ("Vanilla pre-training", 70.2),
    "pcgrad": ("PCGrad", 75.6),
    "multitask": ("Multitask", 75.5),
    "flip-primary_weight=0.1": ("Ours, η = (1, 1, −1), η_prim = 0.1", 76.1),
}
MULTICIFAR_BEST = 11

# Table 4 by our names of the bases; the better on validation of (1, 1, 0) and (1, 1, −1).
TABLE4 = {
    "canonical": ("Canonical", 51.42, 2.09),
    "random": ("Random", 58.72, 2.68),
    "mean": ("Unit_avg_grad", 59.13, 2.08),
    "sketch": ("Randomized_SVD (as its Algorithm 2 computes it)", 62.2, 4.00),
    "svd": ("", None, None),
    "exact": ("", None, None),
    "sketch, mean included": ("", None, None),
}

# Table 3: mean AUC over the five findings, by the names that table3.py gives to our rows.
TABLE3 = {
    "none": ("No-Pretraining", 78.3, 0.87),
    "primary_only": ("Pretrained-ResNet", 81.4, 1.34),
    "orthogonal_flip-primary_weight=0": ("Pretrained-ResNet + Ours, η = (1, 0, −1)", 83.3, 0.71),
}

# Table 5: the same by finding; NIH calls the last one Effusion.
FINDINGS = ("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion")
TABLE5 = {
    "No-Pretraining": ((76.0, 1.82), (74.9, 2.34), (83.2, 2.26), (79.5, 1.27), (77.9, 1.88)),
    "Pretrained": ((79.0, 3.66), (75.8, 4.04), (85.3, 1.86), (82.6, 0.76), (84.4, 0.75)),
    "Pretrained + Ours (50k)": (
        (81.6, 1.38),
        (78.0, 2.13),
        (85.6, 2.32),
        (85.2, 1.23),
        (83.4, 1.80),
    ),
    "Pretrained + Ours (100k)": (
        (81.8, 0.80),
        (80.7, 1.79),
        (84.9, 1.36),
        (84.7, 1.78),
        (84.3, 0.65),
    ),
}
