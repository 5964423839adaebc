"""The data section of a configuration: where examples come from, and how they are split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from attittud_lab.config.options import (
    LATER,
    Batch,
    Classes,
    Count,
    Flag,
    Limits,
    Place,
    Section,
    Share,
    Steps,
    Weight,
    known,
)

_IN_MEMORY = "the examples are in memory at once"


@dataclass(frozen=True)
class SourceConfig(Section):
    """Where examples come from. A bare path is enough: `primary: pictures/`."""

    shorthand = "path"

    path: Place = "digits"
    """a folder with one folder of images per class, a parquet, csv or jsonl file (or a folder of them),
    hf:owner/name, or digits (embedded)"""
    split: str | None = None
    """the source's own split to read, such as train, or two as train+other; null takes train if there is one,
    else all that is not for validation or test"""
    input: str | None = None
    """column with the image or the text; null looks for image, img, text, ..."""
    label: str | None = None
    """column with the class or the list of 0/1 labels; null looks for label, labels, ..."""
    classes: Classes | None = None
    """keep only these classes; null keeps all"""
    exclude: list[str] = field(default_factory=list)
    """leave these classes out"""
    where: dict[str, str] = field(default_factory=dict, metadata=LATER)
    """keep only rows that have these values, by column: Frontal/Lateral: Frontal"""


@dataclass(frozen=True)
class PrimaryConfig(SourceConfig):
    """The labelled set of the task that matters."""

    train: Count = None
    """training examples: a count, a fraction below 1, or null for all that validation and test leave"""
    validation: Count = 0.2
    """examples for choosing the best model, drawn before the training examples"""
    test: Count = 0.2
    """examples for the final figure; ignored where test_split exists, unless it is a count"""
    validation_split: str | None = None
    """the source's own validation split; null takes validation or val if there is one"""
    test_split: str | None = None
    """the source's own test split; null takes test if there is one"""
    group: str | None = field(default=None, metadata=LATER)
    """column whose rows stay together, such as patient: none of its values is in two of train, validation and
    test; counts of validation and test are then upper bounds"""
    unseen: Literal["refuse", "drop"] = field(default="refuse", metadata=LATER)
    """validation and test examples of classes that the training split lacks: refuse, or drop"""
    overlap: Literal["refuse", "warn", "allow"] = field(default="refuse", metadata=LATER)
    """examples that two of train, validation and test share: refuse (above 10 %, a warning below), warn, or allow"""


@dataclass(frozen=True)
class LabelNoise(Section):
    """Labels that are made wrong on purpose, to see what a strategy makes of such data."""

    kind: Literal["random", "shifted"] = "random"
    """random: any class, the right one among them; shifted: the next class in the list of classes"""
    share: Share = 0.5
    """share of the examples whose label is replaced"""


@dataclass(frozen=True)
class AuxiliaryConfig(SourceConfig):
    """One set of other data. Examples that are also in the primary validation or test set are left out."""

    examples: Count = None
    """how many to use: a count, a fraction below 1, or null for all"""
    objective: Annotated[str, known("objective")] = "classify"
    """classify: predict its labels; masked_lm: predict masked words of a text (needs no labels)"""
    share_head: Flag = False
    """predict with the primary task's head; its classes must be the primary ones"""
    weight: Weight = 1.0
    """factor on this source's loss"""
    batch_size: Batch | None = None
    """its examples in each step; null takes training.guided.batch_size"""
    label_noise: LabelNoise | None = field(default=None, metadata=LATER)
    """replace some of its labels by wrong ones, as a test"""


@dataclass(frozen=True)
class DataConfig(Section):
    """The primary task's data, the other data by name, and how they are read."""

    primary: PrimaryConfig = field(default_factory=PrimaryConfig)
    """the labelled set of the task that matters"""
    auxiliary: dict[str, AuxiliaryConfig] = field(default_factory=dict)
    """other data, by a name of your choice"""
    kind: Literal["auto", "image", "text"] = "auto"
    """what the examples are; auto looks at the primary source"""
    image_size: Annotated[int, Limits(4, 4096, _IN_MEMORY)] | None = None
    """images are scaled to this many pixels; null takes the primary source's most common size"""
    max_length: Annotated[int, Limits(8, 131_072, _IN_MEMORY)] = 128
    """tokens of a text that are read, and of a block of text for language modelling"""
    buckets: Annotated[int, Limits(1, 131_072)] | None = field(default=32, metadata=LATER)
    """texts of similar length share a batch, which is cut to a multiple of so many tokens; null pads all to the
    longest"""
    pack: Flag = field(default=True, metadata=LATER)
    """hf: models only: fill blocks for language modelling with several texts, which do not see each other; false
    gives every text blocks of its own"""
    cache: Place | None = field(default=None, metadata=LATER)
    """folder in which tokenised texts are kept; null takes OUTPUT/tokens"""
    seed: Annotated[int, Limits(-(2**63), 2**63 - 1)] | None = 0
    """seed of the splits; null draws another split for each seed of a run"""
    test_seed: Annotated[int, Limits(-(2**63), 2**63 - 1)] | None = field(default=None, metadata=LATER)
    """seed of the test examples alone, so that all splits are tested on the same ones; null takes the split's own"""
    subsets: Steps | None = None
    """take turns among so many splits, as the seeds of the runs go up; null always has the same one"""
