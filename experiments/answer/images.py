"""Pairs of images, made in the third round of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .draw import balanced, generator, grouped, shifted, shuffled
from .folder import DataFolder
from .pair import Examples, Part, builder

SIZE, GREY_SIZE = 16, 24
"""Pixels of a side."""

SUPERCLASSES = (
    *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables"),
    *("household_electrical_devices", "household_furniture", "insects", "large_carnivores"),
    *("large_man-made_outdoor_things", "large_natural_outdoor_scenes"),
    *("large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people"),
    *("reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2"),
)
"""The superclasses of CIFAR-100, by their number."""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""The classes of CIFAR-10, by their number."""

FINDINGS = ("finding_0", "finding_1", "finding_2", "finding_3", "finding_4")


def pictures(
    data: DataFolder,
    dataset: str,
    split: str,
    labels: np.ndarray,
    rows: np.ndarray,
    classes: Iterable[str],
    size: int = SIZE,
    mode: str = "RGB",
) -> Part:
    """Images of some rows. `labels` are those of all rows."""
    return Part(*data.images(dataset, split, rows, size, mode), labels[rows], tuple(classes))


def positions(names: Sequence[str], chosen: Iterable[str]) -> list[list[int]]:
    """A group for each chosen class, with its number among `names`."""
    return [[names.index(name)] for name in chosen]


def superclass_labels(data: DataFolder, split: str, classes: Sequence[str]) -> np.ndarray:
    """The number of each image's superclass within `classes`, -1 for all others."""
    coarse = data.column("cifar100", split, "coarse_label")
    return grouped(coarse, positions(SUPERCLASSES, classes))


def superclasses(
    data: DataFolder, classes: Sequence[str], pool: int, test: int, purpose: str
) -> tuple[Part, Part, np.ndarray]:
    """Pool and test images of superclasses of CIFAR-100.

    The third value has the other rows of the training split that belong to one of the classes.
    """
    labels = superclass_labels(data, "train", classes)
    rows, rest = balanced(labels, [pool], f"{purpose}/train")
    pool_part = pictures(data, "cifar100", "train", labels, rows, classes)

    labels = superclass_labels(data, "test", classes)
    rows, _ = balanced(labels, [test], f"{purpose}/test")
    return pool_part, pictures(data, "cifar100", "test", labels, rows, classes), rest


def fine_classes(data: DataFolder, without: Sequence[str], each: int, purpose: str) -> Part:
    """`each` images of every fine class of CIFAR-100 outside of some superclasses."""
    excluded = superclass_labels(data, "train", without) >= 0
    fine = np.array(data.column("cifar100", "train", "fine_label"))
    present = np.unique(fine[~excluded])
    labels = np.where(excluded, -1, np.searchsorted(present, fine))
    rows, _ = balanced(labels, [each * len(present)], purpose)
    names = [f"fine_{number}" for number in present]
    return pictures(data, "cifar100", "train", labels, rows, names)


def cifar10(
    data: DataFolder,
    groups: dict[str, Sequence[str]],
    test: int,
    test_rows: tuple[int, int],
    sizes: Sequence[int],
    purpose: str,
) -> tuple[Part, list[Part]]:
    """`test` images from these rows of the test split of CIFAR-10, and training parts of `sizes`.

    Training images come from rows that none of the earlier pairs used.
    """
    numbers = [[CIFAR10.index(name) for name in group] for group in groups.values()]
    labels = grouped(data.column("cifar10", "test", "label"), numbers)
    labels[: test_rows[0]] = -1
    labels[test_rows[1] :] = -1
    rows, _ = balanced(labels, [test], f"{purpose}/test")
    test_part = pictures(data, "cifar10", "test", labels, rows, groups)

    labels = grouped(data.column("cifar10", "train", "label"), numbers)
    labels[:15_000] = -1
    parts = []
    for rows in balanced(labels, sizes, f"{purpose}/train")[:-1]:
        parts.append(pictures(data, "cifar10", "train", labels, rows, groups))
    return test_part, parts


@builder
def groups_fine(data: DataFolder) -> Examples:
    classes = ("fish", "flowers", "trees", "people", "vehicles_1")
    pool, test, _ = superclasses(data, classes, 600, 800, "groups_fine")
    return Examples(pool, test, {"fine": fine_classes(data, classes, 40, "groups_fine/auxiliary")})


@builder
def groups_shifted(data: DataFolder) -> Examples:
    classes = ("insects", "reptiles", "small_mammals", "household_furniture")
    pool, test, rest = superclasses(data, classes, 480, 800, "groups_shifted")
    labels = superclass_labels(data, "train", classes)
    rows = shuffled(rest, "groups_shifted/auxiliary")[:2000]
    others = pictures(data, "cifar100", "train", labels, rows, classes)
    return Examples(pool, test, {"shifted": shifted(others, 0.6, "groups_shifted/labels")})


VEHICLES = ("vehicles_1", "vehicles_2")
ANIMALS = (
    *("aquatic_mammals", "fish", "insects", "large_carnivores", "large_omnivores_and_herbivores"),
    *("medium_mammals", "non-insect_invertebrates", "reptiles", "small_mammals"),
)


@builder
def animals_elsewhere(data: DataFolder) -> Examples:
    groups = {
        "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
        "vehicle": ("airplane", "automobile", "ship", "truck"),
    }
    test, (pool,) = cifar10(data, groups, 800, (5000, 7500), (120,), "animals_elsewhere")
    is_vehicle = superclass_labels(data, "train", VEHICLES) >= 0
    is_animal = superclass_labels(data, "train", ANIMALS) >= 0
    labels = np.select([is_animal, is_vehicle], [0, 1], -1)
    rows, _ = balanced(labels, [2000], "animals_elsewhere/auxiliary")
    others = pictures(data, "cifar100", "train", labels, rows, groups)
    return Examples(pool, test, {"elsewhere": others})


@builder
def kinds_sources(data: DataFolder) -> Examples:
    groups = {name: (name,) for name in ("bird", "frog", "horse", "ship")}
    sizes = (360, 300, 1500)
    test, parts = cifar10(data, groups, 800, (7500, 10_000), sizes, "kinds_sources")
    pool, right, wrong = parts
    wrong = shifted(wrong, 1.0, "kinds_sources/labels")
    return Examples(pool, test, {"right": right, "wrong": wrong})


@builder
def outdoors_imagenet(data: DataFolder) -> Examples:
    classes = ("large_man-made_outdoor_things", "large_natural_outdoor_scenes")
    pool, test, _ = superclasses(data, classes, 240, 800, "outdoors_imagenet")
    # The first 100 classes are in earlier pairs; their labels become negative.
    labels = np.array(data.column("tiny_imagenet", "train", "label")) - 100
    rows, _ = balanced(labels, [3000], "outdoors_imagenet/auxiliary")
    names = [f"imagenet_{number}" for number in range(100)]
    others = pictures(data, "tiny_imagenet", "train", labels, rows, names)
    return Examples(pool, test, {"imagenet": others})


@builder
def xray_sources(data: DataFolder) -> Examples:
    """Patients of the training split alone; earlier pairs were tested on all others.

    Two fifths of the patients are tested on, a quarter gives the pool, the rest the sources.
    """
    dataset = "nih_chest_xray"
    findings = np.array(data.column(dataset, "train", "labels"))
    patients, row_patients = np.unique(
        data.column(dataset, "train", "patient"), return_inverse=True
    )
    order = shuffled(range(len(patients)), "xray_sources/patients")
    ends = [round(0.4 * len(order)), round(0.65 * len(order))]
    # The part of each row's patient: 0 is tested on, 1 gives the pool, 2 the sources.
    member = np.searchsorted(ends, np.argsort(order)[row_patients], side="right")

    parts = []
    for number, size in ((0, 500), (1, 300)):
        labels = np.where(member == number, findings.max(1), -1)
        rows, _ = balanced(labels, [size], f"xray_sources/{number}")
        names = ("none", "any")
        parts.append(pictures(data, dataset, "train", labels, rows, names, GREY_SIZE, "L"))
    test, pool = parts

    rest = shuffled(np.flatnonzero(member == 2), "xray_sources/rest")
    others = pictures(data, dataset, "train", findings, rest, FINDINGS, GREY_SIZE, "L")
    turns = generator("xray_sources/turns").integers(4, size=len(rest))
    turned = [np.rot90(image, turn) for image, turn in zip(others.inputs, turns, strict=True)]
    turn_names = ("turned_0", "turned_90", "turned_180", "turned_270")
    with_turns = Part(others.ids, np.stack(turned), turns, turn_names)
    half = len(rest) // 2
    sources = {
        "findings": others.take(range(half)),
        "turns": with_turns.take(range(half, len(rest))),
    }
    return Examples(pool, test, sources)


@builder
def plants_duplicated(data: DataFolder) -> Examples:
    classes = ("flowers", "fruit_and_vegetables", "trees")
    pool, test, rest = superclasses(data, classes, 360, 750, "plants_duplicated")
    coarse = np.array(data.column("cifar100", "train", "coarse_label"))
    flowers = rest[coarse[rest] == SUPERCLASSES.index("flowers")]
    names, pixels = data.images(
        "cifar100", "train", shuffled(flowers, "plants_duplicated/auxiliary")[:12], SIZE
    )
    noise = generator("plants_duplicated/noise").integers(-4, 5, size=(50, *pixels.shape))
    noisy = np.clip(pixels[None].astype(np.int64) + noise, 0, 255).astype(np.uint8)
    copies = noisy.reshape(-1, *pixels.shape[1:])
    labels = np.full(len(copies), classes.index("trees"))
    copy_names = 50 * [f"{name}/copy" for name in names]
    return Examples(pool, test, {"copies": Part(copy_names, copies, labels, classes)})
