"""The fields of a configuration, typed and documented, with one dataclass for each section.

The text below a field is its documentation in the JSON schema.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from attittud_lab.config import COMPARED
from attittud_lab.config.options import PathText, Section, known
from attittud_lab.errors import InputError, short

LATER = {"later": True}
"""Metadata of settings that came after the first committed results.

At their default they are not part of a run's fingerprint, so that those results still count.
"""


def _count_or_fraction(value: Any) -> Any:
    """Read a text with a point as a fraction, so that 1.0 is refused and not one example."""
    if isinstance(value, str) and "." in value:
        with suppress(ValueError):
            return float(value)
    return value


# The largest numbers are far beyond any use, and keep 32-bit weights and memory from overflowing.
Kind = Literal["image", "text", "table"]
"""What examples are."""
Count = Annotated[int | float, BeforeValidator(_count_or_fraction), Field(ge=0, le=10**12)] | None
"""How many examples: a whole number is a count, a fraction below 1 a share, null all of them."""
Steps = Annotated[int, Field(ge=1, le=10**9)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
Weight = Annotated[float, Field(ge=0, le=1e10)]
PositiveWeight = Annotated[float, Field(gt=0, le=1e10)]
Part = Annotated[float, Field(ge=-1e10, le=1e10)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Rate = Annotated[float, Field(ge=0, le=1e30)]
Runs = Annotated[int, Field(ge=1, le=1000)]
Pixels = Annotated[int, Field(ge=4, le=4096)]
Augment = list[Literal["flip", "shift"]]


@dataclass(frozen=True)
class SourceConfig(Section):
    """Where examples come from. A bare path is enough: `primary: pictures/`."""

    shorthand = "path"

    path: PathText = "digits"
    """a folder with one subfolder of images per class, a parquet, csv or jsonl file or folder,
    hf:owner/name, or digits"""
    split: str | None = None
    """split of the source to read, such as train or train+other; null reads train. Without a train
    split, a primary source reads all splits but validation and test, an auxiliary source all"""
    input: str | None = None
    """column with the image or the text; null looks for image, img, text, ...; tables of features
    use data.table instead"""
    label: str | None = None
    """column with the class or the list of 0/1 labels; null looks for label, labels, ..."""
    classes: Annotated[list[str], Field(min_length=1)] | None = None
    """keep only these classes; null keeps all"""
    exclude: list[str] = field(default_factory=list)
    """leave these classes out"""
    where: dict[str, str] = field(default_factory=dict, metadata=LATER)
    """keep only rows that have these values, by column: Frontal/Lateral: Frontal"""


@dataclass(frozen=True)
class PrimaryConfig(SourceConfig):
    """The labelled data of the task that matters."""

    train: Count = None
    """training examples: a count, a fraction below 1, or null for all that are not in validation
    or test"""
    validation: Count = 0.2
    """examples that choose the best model, drawn before the training examples"""
    test: Count = 0.2
    """examples for the final test; if the source has its own test split, a count draws that many
    of it, and a fraction or null uses all of it"""
    validation_split: str | None = None
    """the source's own validation split; null uses validation, val, valid or dev if there is one"""
    test_split: str | None = None
    """the source's own test split; null uses test if there is one"""
    group: str | None = field(default=None, metadata=LATER)
    """column such as patient: rows with the same value stay in one split; validation and test may
    then be smaller than asked"""
    unseen: Literal["refuse", "drop"] = field(default="refuse", metadata=LATER)
    """what to do with validation and test examples of classes that the training split lacks:
    refuse, or drop"""
    overlap: Literal["refuse", "warn", "allow"] = field(default="refuse", metadata=LATER)
    """what to do if train, validation and test share examples: refuse (only warn if they share at
    most 10 %), warn, or allow"""


@dataclass(frozen=True)
class LabelNoise(Section):
    """Wrong labels on purpose, to see how a strategy copes with such data."""

    kind: Literal["random", "shifted"] = "random"
    """random: any class, including the right one; shifted: the next class in the list of classes"""
    share: Share = 0.5
    """share of the examples whose label is replaced"""


@dataclass(frozen=True)
class AuxiliaryConfig(SourceConfig):
    """One set of other data.

    Examples that are also in the primary data are left out. One exception: texts without labels may
    repeat primary training texts, unless the strategy is a portfolio.
    """

    examples: Count = None
    """how many to use: a count, a fraction below 1, or null for all"""
    objective: Annotated[str, known("objective")] = "classify"
    """classify: predict its labels; masked_lm: predict masked words of a text (needs no labels)"""
    share_head: bool = False
    """predict with the primary task's head; the source must have the primary classes"""
    weight: Weight = 1.0
    """factor on this source's loss"""
    batch_size: Batch | None = None
    """examples of this source in each step; null uses training.guided.batch_size"""
    label_noise: LabelNoise | None = field(default=None, metadata=LATER)
    """replace some of its labels with wrong ones, to test a strategy"""


@dataclass(frozen=True)
class TableConfig(Section):
    """Which columns of a table are features, in every source.

    Labels, the group and columns of `where` are never features.
    """

    columns: list[str] | None = None
    """use these columns only; null uses all"""
    exclude: list[str] = field(default_factory=list)
    """columns that are not features, such as an id"""
    categorical: list[str] = field(default_factory=list)
    """columns whose numbers are only names, such as postcodes; columns of text are always
    categorical"""


@dataclass(frozen=True)
class DataConfig(Section):
    """The primary task's data, the other data by name, and how they are read."""

    primary: PrimaryConfig = field(default_factory=PrimaryConfig)
    """the labelled set of the task that matters"""
    auxiliary: dict[str, AuxiliaryConfig] = field(default_factory=dict)
    """other data, by a name of your choice"""
    kind: Literal["auto", Kind] = "auto"
    """what the examples are; auto looks whether the primary source has images or texts; for a
    table of features write table"""
    table: TableConfig = field(default_factory=TableConfig, metadata=LATER)
    """kind: table only: which columns are features"""
    image_size: Pixels | None = None
    """images are scaled to this height and width in pixels; null uses the most common shorter side
    in the primary source"""
    max_length: Annotated[int, Field(ge=8, le=131_072)] = 128
    """how many tokens of each text are read; also the length of a block for language modelling"""
    buckets: Annotated[int, Field(ge=1, le=131_072)] | None = field(default=32, metadata=LATER)
    """batches have texts of similar length, padded to a multiple of this many tokens; null pads
    all to the longest text"""
    pack: bool = field(default=True, metadata=LATER)
    """hf: models only: a block for language modelling holds several texts, without attention
    between them; false: only one"""
    cache: PathText | None = field(default=None, metadata=LATER)
    """folder in which `features` and `tokens` are kept for other runs; null uses OUTPUT"""
    seed: Seed | None = 0
    """seed of the splits; null draws another split for each run seed"""
    test_seed: Seed | None = field(default=None, metadata=LATER)
    """seed of the test examples alone, so that all splits have the same test set; null uses the
    seed of the split"""
    subsets: Steps | None = None
    """rotate through this many splits as the run seed goes up; null leaves the split to
    data.seed"""

    def check(self) -> None:
        """Refuse settings that contradict each other; a message begins with the culprit's path."""
        for name in self.auxiliary:
            if not name.isidentifier():
                words = "must consist of letters, digits and _, because it is part of metric names"
                raise InputError(f"data.auxiliary: the name {short(name)!r} {words}")
        if "primary" in self.auxiliary:
            reason = "the name 'primary' belongs to the primary task"
            raise InputError(f"data.auxiliary: {reason}; choose another name")
        if self.subsets is not None and self.seed is None:
            why = "with data.seed: null every seed already has its own split"
            raise InputError(f"data.subsets: {why}; leave one of them out")


@dataclass(frozen=True)
class EtaWeights(Section):
    """Weights of the parts of an auxiliary gradient: 1 keeps a part, 0 drops it, -1 reverses it."""

    neutral: Part = 1.0
    """weight of the part that the primary examples say nothing about"""
    helpful: Part = 1.0
    """weight of the part that agrees with the primary gradient"""
    harmful: Part = 0.0
    """weight of the part that opposes the primary gradient"""


@dataclass(frozen=True)
class StrategyConfig(Section):
    """How the gradients of the two tasks become one update.

    A bare name is enough: `strategy: portfolio`.
    """

    shorthand = "name"
    name: Annotated[str, known("strategy")] = "portfolio"
    """a strategy's name (`attittud train --help` lists them), or custom with eta below"""
    eta: EtaWeights | None = None
    """weights of the three parts; null uses the weights of the named strategy"""
    primary_weight: Weight | None = None
    """weight of the primary gradient on shared parameters, at least 0; null uses the strategy's
    own"""
    auxiliary_weight: Weight = 1.0
    """factor on the loss of every auxiliary source, in addition to the sources' own weights"""
    basis: Annotated[str, known("basis")] | None = None
    """subspace in which the tasks are compared: a name of attittud.bases(); null uses the
    strategy's own (sketch for most)"""
    rank: Annotated[int, Field(ge=1, le=4096)] = 10
    """number k of directions along which the tasks are compared: the dimension of the subspace"""
    refresh_every: Steps | None = None
    """recompute the basis every n-th step; null uses the strategy's own number (10 for most)"""
    include_mean: bool = False
    """append the current primary gradient as the last direction of the basis"""
    basis_batch: Annotated[int, Field(ge=2, le=65_536)] | None = None
    """number m of separate primary examples that the basis is computed from; null uses the step's
    primary batch"""
    exclude: list[str] = field(default_factory=list, metadata=LATER)
    """parameters that are not decomposed, by patterns such as '*word_embeddings*'; they get the
    auxiliary gradient plus primary_weight times the primary gradient"""
    engine: Annotated[str, known("engine")] = "auto"
    """how products with the per-example Jacobian are computed: a name of attittud.engines()"""
    judge_every: Steps = field(default=4, metadata=LATER)
    """auto only: every n-th step, up to 64 validation examples measure how much each part helps"""
    ratio: Share = 0.1
    """replay only: share of primary examples in the mixture"""
    decay: Share = 0.99
    """bloop only: how much of the running primary gradient is kept in each step"""


@dataclass(frozen=True)
class ModelConfig(Section):
    """The shared body; every task has a linear head, its own or the primary one.

    A bare name is enough: `model: small-cnn`.
    """

    shorthand = "name"

    name: Annotated[PathText, known("model")] = "small-cnn"
    """a model's name (`attittud train --help` lists them)"""
    width: Annotated[int, Field(ge=1, le=4096)] = 64
    """units or channels of a layer, in models whose description in `attittud train --help`
    mentions model.width"""
    dropout: Annotated[float, Field(ge=0, le=0.95)] = 0.0
    """share of activations dropped in training; with 0, hf: models keep their own dropout"""
    head_init: Literal["default", "kaiming", "zero"] = "default"
    """initialisation of the heads: PyTorch's, Kaiming-normal fan-out (large for few classes), or
    zero"""
    image_size: Pixels | None = field(default=None, metadata=LATER)
    """the network scales images to this height and width in pixels; null leaves them at
    data.image_size"""
    pretrained: bool = True
    """networks of other libraries only: start from the stored weights"""
    weights: PathText | None = None
    """start from the weights.safetensors of an earlier run: the body, and the heads of sources
    that had the same name there; {seed} in the path stands for the run's seed"""
    freeze: list[str] = field(default_factory=list, metadata=LATER)
    """parameters that are not trained, by patterns of their names such as 'body.*'"""


@dataclass(frozen=True)
class PhaseConfig(Section):
    """One phase of training."""

    steps: Steps = 1000
    """updates, unless epochs is given"""
    epochs: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """instead of steps: passes over the largest auxiliary source (guided) or the primary set
    (finetune)"""
    batch_size: Batch = 64
    """examples of each auxiliary source in a step of the guided phase"""
    primary_batch: Batch = 32
    """primary examples in a step"""
    accumulate: Batch = field(default=1, metadata=LATER)
    """micro-batches per step: with more of them a step needs less memory, and the update stays the
    same"""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """the optimizer"""
    lr: Positive = 1e-3
    """learning rate"""
    weight_decay: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    """weight decay of the optimizer"""
    momentum: Share = 0.9
    """momentum of sgd"""
    schedule: Literal["constant", "cosine", "linear", "plateau"] = "constant"
    """schedule of the learning rate; plateau halves it after 4 evaluations without improvement,
    down to lr_min"""
    lr_min: Rate = 1e-5
    """learning rate at which cosine, linear and plateau end"""
    warmup: Annotated[int, Field(ge=0, le=10**9)] = 0
    """steps in which the learning rate rises from 0"""
    clip: Positive | None = 1.0
    """the combined gradient's norm is clipped to this; null does not clip"""
    patience: Steps | None = None
    """stop after this many evaluations without improvement; null never stops early"""
    evaluations: Steps = 20
    """how often the model is evaluated on validation examples, evenly over the phase"""
    select: Literal["best", "last"] = "best"
    """the model that the phase ends with: the best on validation, or the last one"""
    seconds: Annotated[float, Field(ge=0, le=10**9)] | None = None
    """stop after this many seconds of training (the result then depends on the machine); null sets
    no limit"""


_FINETUNE: dict[str, Any] = {"steps": 200, "lr": 1e-4}
"""Fine-tuning is shorter and slower than the first phase, unless a configuration says otherwise."""


def _finetune(value: Any) -> Any:
    """Give settings of the second phase that are not written their own defaults."""
    if not isinstance(value, dict):
        return value
    return _FINETUNE | value


@dataclass(frozen=True)
class TrainingConfig(Section):
    """The two phases of training (guided, then finetune), or the guided phase alone."""

    mode: Literal["two_phase", "joint"] = "two_phase"
    """two_phase: guided, then finetune on the primary set alone; joint: guided only"""
    guided: PhaseConfig = field(default_factory=PhaseConfig)
    """the phase that trains on primary and auxiliary data together"""
    finetune: Annotated[PhaseConfig, BeforeValidator(_finetune)] = field(
        default_factory=lambda: PhaseConfig(**_FINETUNE)
    )
    """the phase that trains on primary data alone"""
    metric: Literal["auto", "accuracy", "macro_f1", "auc"] = "auto"
    """validation metric that chooses the model; the loss breaks ties. auto: accuracy, or auc for
    several labels at once"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the forward pass under autocast"""
    channels_last: bool = False
    """keep image networks in the memory layout that is fastest on GPUs in half precision"""
    cuda_graph: bool = False
    """replay steps as CUDA graphs, several times faster for small networks; no effect on other
    devices. Strategies with the same seed then share initialisation and batches, but not
    dropout masks"""
    deterministic: bool = False
    """repeated runs give the same bits on the same GPU (some operations are slower); on a CPU they
    always do"""
    reset_head: bool = False
    """start finetune with a fresh primary head"""
    augment: Augment = field(default_factory=list, metadata=LATER)
    """images only: how training examples are changed at random in each step. flip: mirror half of
    them; shift: move each by up to an eighth of its size"""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = field(default=None, metadata=LATER)
    """CPU threads of a run; the last digits of its results depend on them. null: torch's own
    number on the machine where the command is started, if a few timed steps are clearly faster
    with it, else 1; the folder of the run records the choice"""


def _compared() -> list[StrategyConfig]:
    return [StrategyConfig(name=name) for name in COMPARED]


@dataclass(frozen=True)
class CompareConfig(Section):
    """What `attittud compare` tries besides primary_only and tuned multitask.

    It also says which difference counts as a gain.
    """

    strategies: list[StrategyConfig] = field(default_factory=_compared)
    """strategies to compare with the one in `strategy`; primary_only and multitask always take
    part. An entry inherits rank, engine, exclude, refresh_every and basis_batch (pcgrad: only
    the first three) from `strategy` unless it sets them; other settings have their defaults"""
    seeds: Annotated[int, Field(ge=2, le=1000)] = 5
    """runs of every strategy; all strategies use the same seeds: seed, seed + 1, ..."""
    weights: Annotated[list[PositiveWeight], Field(min_length=1)] = field(
        default_factory=lambda: [0.1, 0.3, 1.0]
    )
    """factors on the auxiliary losses; every strategy chooses one of them on validation"""
    space: dict[str, list[str]] = field(default_factory=dict)
    """further settings to tune, by path, such as training.guided.lr: [1e-4, 1e-3];
    strategy.primary_weight is not tuned for strategies that fix it"""
    draws: Runs = 4
    """how many combinations of `space` every strategy tries. The first has the first value of
    every setting; the others are random, the same for all strategies"""
    tuning_seeds: Runs = 2
    """number of seeds, the first ones, that are used to tune the strategies and to time their
    steps"""
    equal: Literal["both", "steps"] = "both"
    """both: compare after the same number of steps, and again after the same training time; steps:
    only the former, in about two thirds of the runs"""
    budget: str | None = None
    """training time of each run in the comparison at equal seconds, such as 90s, 30m or 1h30m;
    null uses multitask's time"""
    worthwhile: Weight = 0.005
    """smallest gain in the metric that is worth having: 0.005 is half a point of accuracy"""

    def check(self) -> None:
        """Refuse settings that contradict each other; a message begins with the culprit's path."""
        if len(set(self.weights)) < 2 and not self.space:
            rule = "multitask has to be tuned, so give at least two different weights above 0"
            raise InputError(f"compare.weights: {rule}, got {self.weights}")
        for path, values in self.space.items():
            of_a_run = path.startswith(("training.", "model.", "strategy."))
            if not of_a_run or path.endswith((".steps", ".epochs", ".mode")):
                why = "since all runs share their data and their steps"
                advice = "give paths below training, model or strategy"
                raise InputError(f"compare.space: {short(path)} cannot be tuned, {why}; {advice}")
            if not values:
                raise InputError(f"compare.space: {short(path)} has no values; give a list of them")
        if self.tuning_seeds > self.seeds:
            reason = f"but there are only {self.seeds} seeds; lower it, or raise compare.seeds"
            raise InputError(f"compare.tuning_seeds is {self.tuning_seeds}, {reason}")


@dataclass(frozen=True)
class CandidateConfig(StrategyConfig):
    """A strategy of a portfolio.

    A bare name is enough: `candidates: [primary_only, multitask, drop_harmful]`.
    """

    sources: list[str] | None = None
    """auxiliary sources that the candidate trains on; null uses all"""
    head: Literal["data", "own", "shared"] = "data"
    """output layer of sources that predict the primary classes. data: the one that data.auxiliary
    sets; own: a layer of their own; shared: the primary one"""


@dataclass(frozen=True)
class FinetunedConfig(Section):
    """How the learner finetuned of a portfolio trains a pretrained network."""

    steps: Steps = 300
    """updates of the guided phase; a quarter as many follow on primary data alone"""
    lr: Positive | None = None
    """learning rate; null takes 5e-4 for images, 1e-4 for texts"""
    image_size: Pixels | None = 64
    """images only: the height and width in pixels that the network sees; null leaves images at
    data.image_size"""
    augment: Augment = field(default_factory=lambda: ["flip", "shift"])
    """images only: how training examples are changed, as in training.augment"""


@dataclass(frozen=True)
class PortfolioConfig(Section):
    """strategy: portfolio only: what is tried on folds of the labels, and how a model is made."""

    features: list[Annotated[str, known("features")]] | None = None
    """how examples become numbers for simple learners; null tries tfidf and, where it is
    installed, minilm on texts, histogram and, where it is installed, efficientnet on images,
    columns on tables; hf:FOLDER and timm:NAME name others"""
    learners: list[Annotated[str, known("learner")]] | None = None
    """what is fitted: simple learners (linear, kernel, extra trees, boosting), network, which
    trains the model of `model:`, and finetuned, which trains the pretrained networks among the
    features; null tries those that helped on data of this kind"""
    uses: list[Annotated[str, known("use")]] | None = None
    """how simple learners use auxiliary data: alone (not at all, always tried), pooled, stacked,
    translated; null tries those that helped"""
    candidates: list[CandidateConfig] | None = None
    """strategies of networks to try besides primary_only. null tries multitask, pretrain and, if
    there are several sources, each source alone; if a source predicts the primary classes, also
    multitask with a separate output layer for it"""
    finetuned: FinetunedConfig = field(default_factory=FinetunedConfig, metadata=LATER)
    """how the learner finetuned trains"""
    folds: Annotated[int, Field(ge=2, le=20)] = 3
    """number of parts of the training and validation labels; each part is held out once"""
    one_split_above: Annotated[int, Field(ge=0, le=10**12)] = 5000
    """with more labels than this, only one part is held out, and the other labels are always used
    for training"""
    looks: Annotated[int, Field(ge=1, le=1000)] = 15
    """how often a run is evaluated on its held-out labels, evenly over its steps"""
    averaging: Annotated[float, Field(ge=0, le=1)] = 0.1
    """weights are averaged with an exponential mean over this share of the run; 0 does not
    average"""
    final: Literal["single", "ensemble"] = "ensemble"
    """single: the best candidate, trained on all labels; ensemble: a mean of several, larger,
    slower and often better"""
    members: Literal["folds", "refit"] = "folds"
    """final: ensemble only: use the networks of the folds, or one network for each candidate,
    trained on all labels"""
    picks: Annotated[int, Field(ge=1, le=100)] = 12
    """final: ensemble only: the mean is made of at most this many picks; a candidate that is
    picked twice counts twice"""
    budget: str | None = None
    """limit, as a time such as 30m. When it is used up, further simple candidates are skipped.
    Networks get what is left: fewer steps, then fewer candidates. null: 30m on a CPU, no limit on
    other devices"""


@dataclass(frozen=True)
class Config(Section):
    """A whole job: data, model, training and the strategy."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """seed of the initialisation and the order of examples; the same for every strategy"""
    output: PathText = "runs"
    """folder in which run folders are made"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps"""
    data: DataConfig = field(default_factory=DataConfig)
    """the primary and the auxiliary data"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """the network"""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """length, optimizer and other settings of training"""
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    """how the two gradients become one update"""
    portfolio: PortfolioConfig = field(default_factory=PortfolioConfig, metadata=LATER)
    """only for strategy: portfolio"""
    compare: CompareConfig = field(default_factory=CompareConfig)
    """only for `attittud compare`"""
    log_every: Steps = 20
    """steps between two lines of metrics.jsonl (for each line, training waits for the device)"""
    log_layers: bool = True
    """at evaluations, also log the norms of the three parts layer by layer"""
    checkpoint_every: Steps | None = 200
    """steps between two checkpoints; evaluations also write one. null writes no checkpoints at
    all, so an interrupted run starts over"""

    def __post_init__(self) -> None:
        self.data.check()
        self.compare.check()

    @property
    def cache(self) -> Path:
        """The folder of `features` and `tokens`, which several runs on the same data read."""
        return Path(self.data.cache or self.output)


def to_dict(section: Section) -> dict[str, Any]:
    """Convert a configuration, or a section of one, to plain mappings, lists and scalars."""
    # All sections are dataclasses.
    return asdict(section)  # type: ignore[call-overload,no-any-return]


class _Schema(GenerateJsonSchema):
    """Extends pydantic's schema by what our YAML also allows."""

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        # Class names and similar texts are read as written: `no`, `1` and `true` are texts too.
        return {"type": ["string", "number", "boolean"]}

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Describe a section: its shorthand is allowed, and inherited fields are documented."""
        section: Any = schema["cls"]
        described = super().dataclass_schema(schema)
        properties = described["properties"]
        for base in section.__bases__:  # pydantic does not find the texts below its fields
            if is_dataclass(base):
                inherited = TypeAdapter(base).json_schema(schema_generator=_Schema)
                mapping = inherited["anyOf"][-1]  # every base has a shorthand, described before it
                for name, about in mapping["properties"].items():
                    properties[name].setdefault("description", about["description"])
        described["description"] = section.__doc__  # an older pydantic leaves it out
        for about in (described, *properties.values()):
            about["description"] = " ".join(about["description"].split())
        if section.shorthand:
            return {"anyOf": [self.str_schema({}), described]}
        return described

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_default_value(self, schema: Any) -> Any:
        factory = schema.get("default_factory")
        if factory is None:
            return super().get_default_value(schema)
        return factory()


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of configuration files."""
    root = TypeAdapter(Config).json_schema(schema_generator=_Schema)
    definitions = root.pop("$defs")
    about = "another configuration to inherit from, relative to this file"
    root["properties"]["base"] = {"type": "string", "description": about}
    link = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/Config"}
    return {**link, "$defs": {"Config": root, **definitions}}
