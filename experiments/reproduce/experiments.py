"""The experiments by name: which configurations they are made of, and which settings their parts
change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from attittud_lab.config.schema import SourceConfig
from attittud_lab.data.source import open_listing, open_source
from attittud_lab.errors import InputError, listed
from experiments.reproduce.miniature import CHEST_XRAY, write_chest_xray, write_miniature
from experiments.reproduce.text import (
    FOLDERS,
    QUICK,
    QUICK_PARTS,
    text_parts,
    text_start,
    write_encoder,
    write_texts,
)

Part = tuple[str, list[str]]
"""The name of a configuration file, and overrides: the paths of the data among them."""
Parts = Callable[[Path], Mapping[str, Part]]
"""By name, given the folder with the data."""


@dataclass(frozen=True)
class Experiment:
    """Each part is one comparison."""

    about: str
    parts: Parts
    data: str
    """What the folder with the data holds, in words."""
    miniature: Callable[[Path], Path]
    """Writes made-up data in the same layout below a folder, and returns the one to take for the
    data.
    """
    quick: tuple[str, ...] = ()
    """What --quick changes beyond the usual."""
    quick_parts: tuple[str, ...] = ()
    """Parts that --quick runs, if not all."""
    encoder: Callable[[Path], Path] | None = None
    """For an experiment that needs a pretrained text encoder (--model): writes a tiny one below a
    folder, for --quick.
    """
    start: Callable[[Path], Part] | None = None
    """A run from whose weights, seed by seed, all others start that have `model.weights` set."""
    searched: Sequence[str] | None = None
    """Parts whose validation examples choose the settings of all parts; None: each part has its own
    search.
    """
    runs_of: str | None = None
    """The experiment in whose runs it is measured, if not in its own."""


def _files(*names: str) -> Parts:
    """Configurations whose two sources are one folder."""
    return lambda folder: {name: (f"{name}.yaml", _both(folder)) for name in names}


def _both(folder: Path) -> list[str]:
    return [f"data.primary.path={folder}", f"data.auxiliary.others.path={folder}"]


def _chest_xray(file: str, folder: Path) -> Part:
    """A configuration whose X-rays and photographs are two folders in one."""
    for name in CHEST_XRAY:
        if not (folder / name).is_dir():
            raise InputError(
                f"--data {folder}: there is no folder {name} in it; it has to hold {' and '.join(CHEST_XRAY)}"
            )
    x_rays, photographs = CHEST_XRAY
    return file, [
        f"data.primary.path={folder / x_rays}",
        f"data.auxiliary.photographs.path={folder / photographs}",
    ]


def _chest_xrays(folder: Path) -> Mapping[str, Part]:
    """Without and with a start from the weights of pre-training."""
    names = ("table3-chest-xray-none", "table3-chest-xray")
    return {name: _chest_xray(f"{name}.yaml", folder) for name in names}


def superclasses(folder: Path) -> dict[str, list[str]]:
    """The fine classes of every coarse one, from CIFAR-100 as the dataset hub has it; refuses other
    data.
    """
    listings = []
    for column in ("fine_label", "coarse_label"):
        config = SourceConfig(path=str(folder), split="train", label=column)
        listings.append(open_listing(config, open_source(config.path), "train"))
    fine, coarse = listings
    fine_of: dict[str, list[str]] = {name: [] for name in coarse.classes}
    pairs = np.unique(np.stack([coarse.labels, fine.labels], 1), axis=0)
    for coarse_number, fine_number in pairs.tolist():
        fine_of[coarse.classes[coarse_number]].append(fine.classes[fine_number])
    for name, classes in fine_of.items():
        if not classes:
            raise InputError(
                f"{folder}: no training image is of the coarse class {name!r}; these are not CIFAR-100's"
            )
    count = Counter(chain(*fine_of.values()))
    for name in fine.classes:
        if count[name] != 1:
            raise InputError(
                f"{folder}: {name!r} does not belong to exactly one coarse class; these are not CIFAR-100's"
            )
    return fine_of


SEARCHED = (
    "aquatic_mammals",
    "household_electrical_devices",
    "large_natural_outdoor_scenes",
    "reptiles",
)
"""Superclasses whose validation images choose the settings for all: every fifth in alphabetical
order.
"""


def declared(names: Sequence[str], parts: Sequence[str], folder: Path) -> list[str]:
    """Return superclasses that the protocol names, all of which the data must have: no other may
    stand in for one of them.
    """
    missing = [name for name in names if name not in parts]
    if missing:
        raise InputError(
            f"--data {folder}: the column coarse_label has no class {listed(missing)}, which the protocol names; it has "
            f"{listed(parts)}. Take CIFAR-100's parquet files with the names of both label columns"
        )
    return list(names)


def _multicifar(folder: Path) -> Mapping[str, Part]:
    """Every coarse class in turn is the primary task, all others are auxiliary."""
    parts = {}
    for name, fine in superclasses(folder).items():
        classes = ", ".join(fine)
        changes = [
            f"data.primary.classes=[{classes}]",
            f"data.auxiliary.others.exclude=[{classes}]",
        ]
        parts[name] = ("table2-multicifar100.yaml", [*changes, *_both(folder)])
    return parts


_CIFAR10 = ("the parquet files of CIFAR-10", partial(write_miniature, kind="cifar10"))

EXPERIMENTS: dict[str, Experiment] = {
    "table2-cat-vs-dog": Experiment(
        "Table 2, Cat-vs-Dog: the five rows of the paper, then further baselines and the other three Etas, then more seeds",
        _files(
            "table2-cat-vs-dog",
            "table2-cat-vs-dog-more",
            "table2-cat-vs-dog-zero",
            "table2-cat-vs-dog-15",
        ),
        *_CIFAR10,
    ),
    "table4-bases": Experiment(
        "Table 4: six bases with Eta (1, 1, 0) and (1, 1, -1)",
        _files("table4-bases", "table4-bases-exact"),
        *_CIFAR10,
    ),
    "figure2-samples": Experiment(
        "Figure 2, left: accuracy against m, the examples that build a basis of rank 5",
        _files("figure2-samples"),
        *_CIFAR10,
    ),
    "figure2-rank": Experiment(
        "Figure 2, right: accuracy against the rank, with 50 and with 1,000 primary examples per class",
        _files("figure2-rank-50", "figure2-rank-1000"),
        *_CIFAR10,
    ),
    "figure3-captured-norm": Experiment(
        "Figure 3: the share of both gradients' norm inside each basis, in the runs of Table 4",
        _files("table4-bases", "table4-bases-exact"),
        *_CIFAR10,
        runs_of="table4-bases",
    ),
    "table2-multicifar100": Experiment(
        "Table 2, MultiCifar100: each of the 20 superclasses in turn is the primary task; settings are searched on four",
        _multicifar,
        "the parquet files of CIFAR-100",
        partial(write_miniature, kind="cifar100"),
        searched=SEARCHED,
    ),
    "table1-text": Experiment(
        "Table 1: two text tasks with 500 and with all labels, beside masked language modelling on their own and on swapped text",
        text_parts,
        f"folders {' and '.join(FOLDERS.values())} of parquet files",
        write_texts,
        quick=QUICK,
        quick_parts=QUICK_PARTS,
        encoder=write_encoder,
        start=text_start,
    ),
    "table3-chest-xray": Experiment(
        "Tables 3 and 5 on open chest X-rays with photographs: none, pretrained, and ATTITTUD with three Etas after it",
        _chest_xrays,
        f"folders {' and '.join(CHEST_XRAY)} of parquet files",
        write_chest_xray,
        start=lambda folder: _chest_xray("table3-chest-xray-start.yaml", folder),
    ),
}
