"""The data section of a configuration: where examples come from, and how they are split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attittud_lab.config.options import Count, option
from attittud_lab.errors import InputError


def _some(classes: list[str] | None) -> None:
    if classes == []:
        raise InputError("the list is empty; name the classes to keep, or null for all")


@dataclass(frozen=True)
class SourceConfig:
    """Where examples come from. A bare path is enough: `primary: pictures/`."""

    shorthand = "path"

    path: str = option(
        "digits",
        "a folder with one folder of images per class, a parquet, csv or jsonl file (or a folder of them), hf:owner/name, "
        "or digits (embedded)",
        path=True,
    )
    split: str | None = option(
        None,
        "the source's own split to read, such as train, or two as train+other; null takes train if there is one, else all that "
        "is not for validation or test",
    )
    input: str | None = option(None, "column with the image or the text; null looks for image, img, text, ...")
    label: str | None = option(
        None, "column with the class or the list of 0/1 labels; null looks for label, labels, ..."
    )
    classes: list[str] | None = option(None, "keep only these classes; null keeps all", check=_some)
    exclude: list[str] = option([], "leave these classes out")
    where: dict[str, str] = option(
        {}, "keep only rows that have these values, by column: Frontal/Lateral: Frontal", later=True
    )


@dataclass(frozen=True)
class PrimaryConfig(SourceConfig):
    """The labelled set of the task that matters."""

    train: Count = option(
        None, "training examples: a count, a fraction below 1, or null for all that validation and test leave"
    )
    validation: Count = option(0.2, "examples for choosing the best model, drawn before the training examples")
    test: Count = option(0.2, "examples for the final figure; ignored where test_split exists, unless it is a count")
    validation_split: str | None = option(
        None, "the source's own validation split; null takes validation or val if there is one"
    )
    test_split: str | None = option(None, "the source's own test split; null takes test if there is one")
    group: str | None = option(
        None,
        "column whose rows stay together, such as patient: none of its values is in two of train, validation and test; counts "
        "of validation and test are then upper bounds",
        later=True,
    )
    unseen: Literal["refuse", "drop"] = option(
        "refuse", "validation and test examples of classes that the training split lacks: refuse, or drop", later=True
    )
    overlap: Literal["refuse", "warn", "allow"] = option(
        "refuse",
        "examples that two of train, validation and test share: refuse (above 10 %, a warning below), warn, or allow",
        later=True,
    )


@dataclass(frozen=True)
class LabelNoise:
    """Labels that are made wrong on purpose, to see what a strategy makes of such data."""

    kind: Literal["random", "shifted"] = option(
        "random", "random: any class, the right one among them; shifted: the next class in the list of classes"
    )
    share: float = option(0.5, "share of the examples whose label is replaced", minimum=0, maximum=1)


@dataclass(frozen=True)
class AuxiliaryConfig(SourceConfig):
    """One set of other data. Examples that are also in the primary validation or test set are left out."""

    examples: Count = option(None, "how many to use: a count, a fraction below 1, or null for all")
    objective: str = option(
        "classify", "classify: predict its labels; masked_lm: predict masked words of a text (needs no labels)"
    )
    share_head: bool = option(False, "predict with the primary task's head; its classes must be the primary ones")
    weight: float = option(1.0, "factor on this source's loss", minimum=0)
    batch_size: int | None = option(None, "its examples in each step; null takes training.guided.batch_size", minimum=1)
    label_noise: LabelNoise | None = option(None, "replace some of its labels by wrong ones, as a test", later=True)


@dataclass(frozen=True)
class DataConfig:
    """The primary task's data, the other data by name, and how they are read."""

    primary: PrimaryConfig = option(PrimaryConfig, "the labelled set of the task that matters")
    auxiliary: dict[str, AuxiliaryConfig] = option({}, "other data, by a name of your choice")
    kind: Literal["auto", "image", "text"] = option("auto", "what the examples are; auto looks at the primary source")
    image_size: int | None = option(
        None,
        "images are scaled to this many pixels; null takes the primary source's most common size",
        minimum=4,
        maximum=4096,
    )
    max_length: int = option(
        128, "tokens of a text that are read, and of a block of text for language modelling", minimum=8
    )
    buckets: int | None = option(
        32,
        "texts of similar length share a batch, which is cut to a multiple of so many tokens; null pads all to the longest",
        minimum=1,
        later=True,
    )
    pack: bool = option(
        True,
        "hf: models only: fill blocks for language modelling with several texts, which do not see each other; false gives every "
        "text blocks of its own",
        later=True,
    )
    cache: str | None = option(
        None, "folder in which tokenised texts are kept; null takes OUTPUT/tokens", path=True, later=True
    )
    seed: int | None = option(0, "of the splits; null draws another split for each seed of a run")
    test_seed: int | None = option(
        None,
        "of the test examples alone, so that all splits are tested on the same ones; null takes the split's own",
        later=True,
    )
    subsets: int | None = option(
        None, "take turns among so many splits, as the seeds of the runs go up; null always has the same one", minimum=1
    )
