"""The fields of a configuration, typed and documented, with one dataclass for each section."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from attittud_lab.config.options import Classes, Flag, Limits, PathText, Section, known
from attittud_lab.errors import InputError, short

LATER = {"later": True}
"""Metadata of settings that came after the first committed results: at their default they are not part of a run's
fingerprint, so that those results still count."""
_MOST = 100  # auxiliary sources, and tries of a comparison
_OVERFLOW = "32-bit weights overflow not far beyond it"
_IN_MEMORY = "the examples are in memory at once"

Kind = Literal["image", "text", "table"]
"""What examples are."""
Count = Annotated[int | float, Limits(0, 10**12)] | None
"""How many examples: a whole number is a count, a fraction below 1 a share, null all of them."""
Steps = Annotated[int, Limits(1, 10**9, "no training takes more")]
Batch = Annotated[int, Limits(1, 65_536, "the examples of a batch are in memory at once")]
Weight = Annotated[float, Limits(0, 1e10, "32-bit gradients overflow not far beyond it")]
Share = Annotated[float, Limits(0, 1)]
Seed = Annotated[int, Limits(-(2**63), 2**63 - 1)]
Part = Annotated[float, Limits(-1e10, 1e10, _OVERFLOW)]
PositiveWeight = Annotated[float, Limits(0, 1e10, _OVERFLOW, above="0 would leave the auxiliary data out")]
LearningRate = Annotated[float, Limits(0, 1e30, _OVERFLOW, above="it would train nothing")]
Rate = Annotated[float, Limits(0, 1e30, _OVERFLOW)]
Runs = Annotated[int, Limits(1, 1000, "every strategy has a run for each")]


@dataclass(frozen=True)
class SourceConfig(Section):
    """Where examples come from. A bare path is enough: `primary: pictures/`."""

    shorthand = "path"

    path: PathText = "digits"
    """a folder with a folder of images per class, a parquet, csv or jsonl file (or a folder of them), hf:owner/name, or digits"""
    split: str | None = None
    """its own split to read, such as train or train+other; null takes train, else all that is not for validation or test"""
    input: str | None = None
    """column with the image or the text; null looks for image, img, text, ...; a table has data.table instead"""
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
    """The labelled data of the task that matters."""

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
    """column, such as patient, whose values are never in two splits; counts of validation and test are then upper bounds"""
    unseen: Literal["refuse", "drop"] = field(default="refuse", metadata=LATER)
    """validation and test examples of classes that the training split lacks: refuse, or drop"""
    overlap: Literal["refuse", "warn", "allow"] = field(default="refuse", metadata=LATER)
    """examples that two of train, validation and test share: refuse (above 10 %, a warning below), warn, or allow"""


@dataclass(frozen=True)
class LabelNoise(Section):
    """Wrong labels on purpose, to see how a strategy copes with such data."""

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


def check_sources(count: int, where: str) -> None:
    """Refuse more auxiliary sources than a step can have."""
    if count > _MOST:
        raise InputError(
            f"{where}: {count} sources are given, at most {_MOST} are allowed: each has its own passes and head in "
            "every step; join similar sources"
        )


@dataclass(frozen=True)
class TableConfig(Section):
    """Which columns of a table are features, in all sources alike; labels, the group and columns of `where` never are."""

    columns: list[str] | None = None
    """use these columns only; null uses all"""
    exclude: list[str] = field(default_factory=list)
    """columns that are not features, such as an id"""
    categorical: list[str] = field(default_factory=list)
    """columns of numbers that only name something, such as a postcode; columns of text always do"""


@dataclass(frozen=True)
class DataConfig(Section):
    """The primary task's data, the other data by name, and how they are read."""

    primary: PrimaryConfig = field(default_factory=PrimaryConfig)
    """the labelled set of the task that matters"""
    auxiliary: dict[str, AuxiliaryConfig] = field(default_factory=dict)
    """other data, by a name of your choice"""
    kind: Literal["auto", Kind] = "auto"
    """what the examples are; auto tells images and texts by the primary source, a table of features has to be named"""
    table: TableConfig = field(default_factory=TableConfig, metadata=LATER)
    """kind: table only: which columns are features"""
    image_size: Annotated[int, Limits(4, 4096, _IN_MEMORY)] | None = None
    """images are scaled to this many pixels; null takes the primary source's most common size"""
    max_length: Annotated[int, Limits(8, 131_072, _IN_MEMORY)] = 128
    """tokens of a text that are read, and of a block of text for language modelling"""
    buckets: Annotated[int, Limits(1, 131_072)] | None = field(default=32, metadata=LATER)
    """batches are of texts of similar length, padded to a multiple of this many tokens; null pads all to the longest text"""
    pack: Flag = field(default=True, metadata=LATER)
    """hf: models only: blocks for language modelling hold several texts, which do not see each other; false: one each"""
    cache: PathText | None = field(default=None, metadata=LATER)
    """folder in which tokenised texts are kept; null takes OUTPUT/tokens"""
    seed: Seed | None = 0
    """seed of the splits; null draws another split for each seed of a run"""
    test_seed: Seed | None = field(default=None, metadata=LATER)
    """seed of the test examples alone, so that all splits are tested on the same ones; null takes the split's own"""
    subsets: Steps | None = None
    """take turns among this many splits, as the seeds of the runs go up; null always has the same one"""

    def check(self) -> None:
        """Refuse what does not go together; a message begins with the path of the culprit."""
        check_sources(len(self.auxiliary), "data.auxiliary")
        for name in self.auxiliary:
            if not name.isidentifier():
                words = "must be letters, digits and _, as it is part of metric names"
                raise InputError(f"data.auxiliary: the name {short(name)!r} {words}")
        if "primary" in self.auxiliary:
            raise InputError("data.auxiliary: the name 'primary' is taken by the primary task; choose another one")
        if self.subsets is not None and self.seed is None:
            why = "with data.seed: null every seed has its own split already"
            raise InputError(f"data.subsets: {why}; leave one of them out")


@dataclass(frozen=True)
class EtaWeights(Section):
    """Weights of the three parts of an auxiliary gradient: 1 keeps a part, 0 drops it, -1 reverses it."""

    neutral: Part = 1.0
    """weight of the part outside of the primary task's subspace"""
    helpful: Part = 1.0
    """weight of the part that agrees with the primary gradient"""
    harmful: Part = 0.0
    """weight of the part that opposes the primary gradient"""


@dataclass(frozen=True)
class StrategyConfig(Section):
    """How the gradients of the two tasks become one update. A bare name is enough: `strategy: auto`."""

    shorthand = "name"
    name: Annotated[str, known("strategy")] = "auto"
    """a strategy's name (`attittud train --help` lists them), or custom with eta below"""
    eta: EtaWeights | None = None
    """weights of the three parts; null takes the weights of the named strategy"""
    primary_weight: Weight | None = None
    """weight of the primary gradient on shared parameters, at least 0; null takes the strategy's own"""
    auxiliary_weight: Weight = 1.0
    """factor on the loss of every auxiliary source, in addition to the sources' own weights"""
    basis: Annotated[str, known("basis")] | None = None
    """subspace in which the tasks are compared, a name of attittud.bases(); null takes the strategy's own (sketch for most)"""
    rank: Annotated[int, Limits(1, 4096, "each is a vector as long as the model")] = 10
    """dimension k of that subspace"""
    refresh_every: Steps | None = None
    """the basis is recomputed in every n-th step; null takes the strategy's own (10 for most)"""
    include_mean: Flag = False
    """append the current primary gradient as last direction of the basis"""
    basis_batch: Annotated[int, Limits(2, 65_536, "their gradients are needed at once")] | None = None
    """examples m that a refresh looks at, other ones than the step's; null uses the step's primary batch"""
    exclude: list[str] = field(default_factory=list, metadata=LATER)
    """parameters that are not decomposed, by patterns such as '*word_embeddings*'; they get the auxiliary gradient plus
    primary_weight times the primary one"""
    engine: Annotated[str, known("engine")] = "auto"
    """how products with the per-example Jacobian are computed, a name of attittud.engines()"""
    judge_every: Steps = field(default=4, metadata=LATER)
    """auto only: up to 64 validation examples measure the parts in every n-th step"""
    ratio: Share = 0.1
    """replay only: share of the primary examples in the mixture"""
    decay: Share = 0.99
    """bloop only: how much of the running primary gradient is kept in each step"""


@dataclass(frozen=True)
class ModelConfig(Section):
    """The shared body; every task gets its own linear head. A bare name is enough: `model: small-cnn`."""

    shorthand = "name"

    name: Annotated[PathText, known("model")] = "small-cnn"
    """a model's name (`attittud train --help` lists them)"""
    width: Annotated[int, Limits(1, 4096, "a layer has the square of it as weights")] = 64
    """units or channels of a layer, in models that `attittud train --help` describes by model.width"""
    dropout: Annotated[float, Limits(0, 0.95)] = 0.0
    """share of activations dropped in training; 0 leaves hf: models their own"""
    head_init: Literal["default", "kaiming", "zero"] = "default"
    """initialisation of the heads: PyTorch's, Kaiming-normal fan-out (large for few classes), or zero"""
    pretrained: Flag = True
    """hf: and timm: only: start from the stored weights"""
    weights: PathText | None = None
    """a weights.safetensors of an earlier run to start from, its body and the heads of sources that are here too; {seed} in
    the path is replaced by the run's seed"""
    freeze: list[str] = field(default_factory=list, metadata=LATER)
    """parameters that are not trained, by patterns of their names such as 'body.*'"""


@dataclass(frozen=True)
class PhaseConfig(Section):
    """One phase of training."""

    steps: Steps = 1000
    """updates, unless epochs is given"""
    epochs: Annotated[float, Limits(0, 10**6, above="null counts steps instead")] | None = None
    """instead of steps: passes over the largest auxiliary source (guided) or the primary set (finetune)"""
    batch_size: Batch = 64
    """examples of each auxiliary source in a step of the guided phase"""
    primary_batch: Batch = 32
    """primary examples in a step"""
    accumulate: Batch = field(default=1, metadata=LATER)
    """micro-batches in which a step is computed, so that it needs less memory; the update stays the same"""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """the optimizer"""
    lr: LearningRate = 1e-3
    """learning rate"""
    weight_decay: Annotated[float, Limits(0, 10**6, _OVERFLOW)] = 0.0
    """weight decay of the optimizer"""
    momentum: Share = 0.9
    """momentum of sgd"""
    schedule: Literal["constant", "cosine", "linear", "plateau"] = "constant"
    """schedule of the learning rate; plateau halves it after 4 evaluations without improvement, down to lr_min"""
    lr_min: Rate = 1e-5
    """where cosine, linear and plateau end"""
    warmup: Annotated[int, Limits(0, 10**9)] = 0
    """steps in which the learning rate rises from 0"""
    clip: Annotated[float, Limits(0, 1e30, _OVERFLOW, above="null does not clip")] | None = 1.0
    """the combined gradient's norm is clipped to this; null does not clip"""
    patience: Steps | None = None
    """stop after this many evaluations without improvement; null never stops early"""
    evaluations: Steps = 20
    """how often validation is looked at, evenly over the phase"""
    select: Literal["best", "last"] = "best"
    """the model that leaves the phase: best on validation, or the last one"""
    seconds: Annotated[float, Limits(0, 10**9)] | None = None
    """stop after this many seconds of training (the result then depends on the machine); null has no limit"""


_FINETUNE: dict[str, Any] = {"steps": 200, "lr": 1e-4}
"""Fine-tuning is shorter and slower than the first phase, unless a configuration says otherwise."""


def _finetune(value: Any) -> Any:
    return _FINETUNE | value if isinstance(value, dict) else value


@dataclass(frozen=True)
class TrainingConfig(Section):
    """The paper's two phases, or joint training."""

    mode: Literal["two_phase", "joint"] = "two_phase"
    """two_phase: guided, then finetune on the primary set alone; joint: guided only"""
    guided: PhaseConfig = field(default_factory=PhaseConfig)
    """auxiliary data guided by the primary task"""
    finetune: Annotated[PhaseConfig, BeforeValidator(_finetune)] = field(
        default_factory=lambda: PhaseConfig(**_FINETUNE)
    )
    """primary data alone"""
    metric: Literal["auto", "accuracy", "macro_f1", "auc"] = "auto"
    """validation figure that chooses the model, ties by loss; auto: accuracy, or auc for several labels at once"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the forward pass under autocast"""
    channels_last: Flag = False
    """image networks in the memory order that GPUs compute fastest in half precision"""
    cuda_graph: Flag = False
    """replay steps as CUDA graphs, several times faster for small networks; without effect on other devices. Strategies of
    a seed then share initialisation and batches, but not their dropout masks"""
    compile: Flag = field(default=False, metadata=LATER)
    """compile the shared body for training steps (torch.compile), which takes a minute or more in each process and changes
    rounding and dropout masks. It needs Triton on a GPU, a C++ compiler on a CPU; without these the body runs as usual"""
    deterministic: Flag = False
    """the same run gives the same bits on the same GPU (some operations are slower); a CPU always does"""
    reset_head: Flag = False
    """start finetune with a fresh primary head"""
    threads: Annotated[int, Limits(1, 1024)] | None = field(default=None, metadata=LATER)
    """threads that a run computes with on a CPU, on which last digits depend; null: 1 for networks below a million
    parameters, which more threads only slow down, else as many as torch takes where the command is given"""


_COMPARED = ("pretrain", "pcgrad", "drop_harmful", "flip", "auto")


@dataclass(frozen=True)
class CompareConfig(Section):
    """What `attittud compare` tries in addition to primary_only and tuned multitask, and which difference counts as a gain."""

    strategies: list[StrategyConfig] = field(default_factory=lambda: [StrategyConfig(name=name) for name in _COMPARED])
    """strategies to compare with the one above; primary_only and multitask always take part. An entry takes rank, engine,
    exclude, refresh_every and basis_batch from the one above where it does not name them; all else has its default"""
    seeds: Annotated[int, Limits(2, 1000, "every strategy has a run for each")] = 5
    """paired runs of every strategy, with the seeds seed, seed + 1, ..."""
    weights: list[PositiveWeight] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    """factors on the auxiliary losses among which every strategy is tuned on validation, the same for all"""
    space: dict[str, list[str]] = field(default_factory=dict)
    """further settings to tune, by path, such as training.guided.lr: [1e-4, 1e-3]; a strategy that fixes its primary_weight
    is tuned in the others alone"""
    draws: Runs = 4
    """combinations of `space` that every strategy tries: the first values, and random others, the same for all"""
    tuning_seeds: Runs = 2
    """seeds on which they are tuned and a step is timed: the first ones"""
    equal: Literal["both", "steps"] = "both"
    """compare at equal steps and at equal seconds, or at equal steps alone, which are half of the runs"""
    budget: str | None = None
    """training time of each run at equal seconds, such as 90s, 30m or 1h30m; null takes multitask's time"""
    worthwhile: Weight = 0.005
    """smallest gain in the metric that is worth having: 0.005 is half a point of accuracy"""

    def check(self) -> None:
        """Refuse what does not go together; a message begins with the path of the culprit."""
        for name in ("strategies", "weights", "space"):
            many, why = len(getattr(self, name)), f"at most {_MOST} are allowed: each of them is tried by training"
            if many > _MOST:
                raise InputError(f"compare.{name}: has {many} entries, {why}")
        if not self.weights or min(self.weights) <= 0:
            raise InputError(f"compare.weights: give weights above 0, got {self.weights}")
        if len(set(self.weights)) < 2 and not self.space:
            cure = "so give at least two different weights above 0"
            raise InputError(f"compare.weights: multitask is to be tuned, {cure}, got {self.weights}")
        for path, values in self.space.items():
            if not path.startswith(("training.", "model.", "strategy.")) or path.endswith(
                (".steps", ".epochs", ".mode")
            ):
                cure = "all runs share their data and their steps. Give paths below training, model or strategy"
                raise InputError(f"compare.space: {short(path)} cannot be tuned; {cure}")
            if not values:
                raise InputError(f"compare.space: {short(path)} has no values; give a list of them")
        if self.tuning_seeds > self.seeds:
            cure = f"but there are only {self.seeds} seeds; lower it, or raise compare.seeds"
            raise InputError(f"compare.tuning_seeds is {self.tuning_seeds}, {cure}")


@dataclass(frozen=True)
class CandidateConfig(StrategyConfig):
    """A strategy of a portfolio. A bare name is enough: `candidates: [primary_only, multitask, drop_harmful]`."""

    sources: list[str] | None = None
    """auxiliary sources that it trains on; null takes all"""
    head: Literal["data", "own", "shared"] = "data"
    """output layer of sources that predict the primary classes: as data.auxiliary says, one of their own, or the primary one"""


@dataclass(frozen=True)
class RungConfig(Section):
    """A moment at which some candidates stop."""

    at: Annotated[float, Limits(0, 1, above="candidates have to be trained before they are compared")] = 0.5
    """share of the steps"""
    keep: Annotated[float, Limits(0, 1, above="somebody has to go on")] = 0.5
    """share of the candidates that go on"""


_RUNGS = ((0.2, 0.4), (0.5, 0.5))


@dataclass(frozen=True)
class PortfolioConfig(Section):
    """strategy: portfolio only: which strategies are tried on folds of the labels, and what becomes of them."""

    candidates: list[CandidateConfig] | None = None
    """strategies to try, in addition to primary_only; null: multitask with three weights, with an output layer of its own
    where a source predicts the primary classes, pretrain, and each of several sources alone"""
    folds: Annotated[int, Limits(2, 20, "every candidate is trained once for each")] = 3
    """parts of the training and validation labels; each of them is held out once"""
    one_split_above: Annotated[int, Limits(0, 10**12)] = 5000
    """with more labels than this, one part is held out and the others always train"""
    rungs: list[RungConfig] = field(default_factory=lambda: [RungConfig(at=at, keep=keep) for at, keep in _RUNGS])
    """when candidates stop, and how many go on; primary_only always does"""
    looks: Annotated[int, Limits(1, 1000)] = 15
    """how often a run is looked at on its held-out labels, evenly over its steps"""
    averaging: Annotated[float, Limits(0, 1)] = 0.1
    """weights are averaged by an exponential mean over this share of the run; 0 takes them as they are"""
    final: Literal["single", "ensemble"] = "single"
    """single: the best candidate, trained on all labels; ensemble: a mean of several, larger, slower and often better"""
    members: Literal["folds", "refit"] = "folds"
    """final: ensemble only: its networks are those of the folds, or one for each candidate, trained on all labels"""
    picks: Annotated[int, Limits(1, 100)] = 12
    """final: ensemble only: how often a candidate is picked; one may be picked several times"""
    budget: str | None = None
    """time such as 30m, or such as 12 runs; where the plan takes longer, it gets fewer steps, then fewer candidates. null: 30m on
    a CPU, no limit on other devices"""

    def check(self) -> None:
        """Refuse what does not go together; a message begins with the path of the culprit."""
        shares = [rung.at for rung in self.rungs]
        if shares != sorted(set(shares)) or 1 in shares:
            raise InputError(f"portfolio.rungs: shares of the steps have to rise and stay below 1, got {shares}")
        if len(self.candidates or ()) > _MOST:
            found = f"portfolio.candidates: has {len(self.candidates or ())} entries, at most {_MOST} are allowed"
            raise InputError(f"{found}: each of them is tried by training")


@dataclass(frozen=True)
class TextsConfig(Section):
    """Chats, prompts with replies, or texts. A bare path is enough: `learn: chats.jsonl`."""

    shorthand = "path"

    path: PathText
    """a parquet, csv or jsonl file, a folder of them, or hf:owner/name"""
    split: str | None = None
    """its own split to read; null takes train, or all there is"""
    columns: list[str] | None = None
    """column of messages or of texts, or columns of prompt and reply, the reply last; null looks for messages, for prompt and
    completion, question and answer, instruction and output, or for text"""
    where: dict[str, str] = field(default_factory=dict)
    """keep only rows that have these values, by column"""
    examples: Count = None
    """how many to use: a count, a fraction below 1, or null for all"""


@dataclass(frozen=True)
class LanguageConfig(Section):
    """task: causal-lm only: a language model learns new data, and some of what it could do before is protected."""

    learn: TextsConfig | None = None
    """what is to be learnt"""
    protect: TextsConfig | None = None
    """examples of what must not get lost"""
    protect_prompts: TextsConfig | None = None
    """instead of protect: prompts, to which the model writes the replies before it is trained"""
    validation: Count = 0.1
    """examples of learn that are held out, to measure what was learnt"""
    protect_validation: Count = 0.2
    """protected examples that are held out, to measure what was forgotten"""
    guard: Annotated[str, known("guard")] = "kl"
    """how they are protected: none, replay, kl, or a name of attittud.guards(); docs/guard.md has the formulas"""
    protect_loss: Literal["nll", "kl"] = "nll"
    """loss of protected examples: that of their tokens, or the divergence from the model before training"""
    protect_weight: Weight | None = None
    """weight of the protected gradient in the update; null takes the method's own"""
    protect_batch: Batch | None = None
    """protected examples in a step; null takes batch_size"""
    refresh_every: Steps | None = None
    """protected directions are recomputed in every n-th step; null takes the method's own"""
    reply_tokens: Annotated[int, Limits(1, 131_072, _IN_MEMORY)] = 128
    """tokens that a reply to a prompt has at most"""
    chat: Flag | None = None
    """write prompts and replies as a chat, by the tokenizer's template; null does so where there is a template"""
    max_length: Annotated[int, Limits(8, 131_072, _IN_MEMORY)] = 512
    """tokens of an example; chats and replies are cut there, texts go on in the next example"""
    lora: Annotated[int, Limits(1, 4096)] | None = None
    """rank of LoRA adapters on all linear layers, with scale 2 (needs the package peft); null trains all weights"""
    steps: Steps = 200
    """updates, unless epochs is given"""
    epochs: Annotated[float, Limits(0, 10**6, above="null counts steps instead")] | None = None
    """instead of steps: passes over the data to learn"""
    batch_size: Batch = 8
    """new examples in a step"""
    accumulate: Batch = 1
    """micro-batches in which a step is computed, each of batch_size / accumulate examples"""
    lr: LearningRate | None = None
    """learning rate of AdamW; null takes 1e-5 for all weights and 1e-4 for LoRA"""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """schedule of the learning rate; cosine and linear end at 0"""
    warmup: Annotated[int, Limits(0, 10**9)] = 0
    """steps in which the learning rate rises from 0"""
    weight_decay: Annotated[float, Limits(0, 10**6, _OVERFLOW)] = 0.0
    """weight decay of AdamW"""
    clip: Annotated[float, Limits(0, 1e30, _OVERFLOW, above="null does not clip")] | None = 1.0
    """the combined gradient's norm is clipped to this; null does not clip"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs forward passes under autocast; weights stay in fp32"""
    gradient_checkpointing: Flag = False
    """compute activations twice, so that a step needs less memory"""
    evaluations: Steps = 10
    """how often loss and forgetting are measured, evenly over the steps"""
    tolerated: Weight = 0.05
    """forgetting that the decision accepts: the rise of the loss on protected examples, in nats per token"""

    def check(self, config: Config) -> None:
        """Refuse what does not go together; a message begins with the path of the culprit."""
        if config.task != "causal-lm":
            if self != LanguageConfig():
                raise InputError("language: is for task: causal-lm alone; add task: causal-lm, or remove language")
            return
        usual = Config()
        for name in ("data", "training", "strategy", "portfolio", "compare"):
            if getattr(config, name) != getattr(usual, name):
                raise InputError(
                    f"{name}: means nothing for task: causal-lm, whose settings are in language; remove it"
                )
        if config.model != ModelConfig(name=config.model.name) or not config.model.name.startswith("hf:"):
            raise InputError(
                "model: task: causal-lm takes model: hf:FOLDER and nothing else, a folder with a causal language model"
            )
        if self.learn is None:
            raise InputError("language.learn: is missing; name the data that the model is to learn")
        if self.protect is not None and self.protect_prompts is not None:
            raise InputError("language.protect_prompts: excludes language.protect; leave one of them out")
        if self.protect is None and self.protect_prompts is None and self.guard != "none":
            cure = "name them by language.protect or language.protect_prompts, or set guard: none"
            raise InputError(f"language.guard: {self.guard} needs examples of what must not get lost; {cure}")
        if self.batch_size % self.accumulate:
            raise InputError(
                f"language.accumulate: {self.accumulate} does not divide batch_size {self.batch_size}; change one of them"
            )


@dataclass(frozen=True)
class Config(Section):
    """A whole job: data, model, training and the strategy."""

    task: Literal["classify", "causal-lm"] = field(default="classify", metadata=LATER)
    """classify: predict labels, with the help of other data; causal-lm: a language model learns new data, see language"""
    seed: Annotated[int, Limits(0, 2**63 - 1)] = 0
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
    """how long and how fast"""
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    """how the two gradients become one"""
    portfolio: PortfolioConfig = field(default_factory=PortfolioConfig, metadata=LATER)
    """for strategy: portfolio alone"""
    compare: CompareConfig = field(default_factory=CompareConfig)
    """for `attittud compare` alone"""
    language: LanguageConfig = field(default_factory=LanguageConfig, metadata=LATER)
    """for task: causal-lm alone"""
    log_every: Steps = 20
    """steps between two lines of metrics.jsonl (each waits for the device)"""
    log_layers: Flag = True
    """at evaluations, also log the norms of the three parts layer by layer"""
    checkpoint_every: Steps | None = 200
    """steps between two checkpoints, in addition to those at evaluations; null: none, an interrupted run starts over"""

    def __post_init__(self) -> None:
        self.data.check()
        self.portfolio.check()
        self.compare.check()
        self.language.check(self)


def to_dict(section: Section) -> dict[str, Any]:
    """A configuration, or a section of one, as plain mappings, lists and scalars."""
    return asdict(section)  # type: ignore[call-overload,no-any-return]  # all sections are dataclasses


class _Schema(GenerateJsonSchema):
    """pydantic's schema, extended by what our YAML also allows."""

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        # Class names and the like are read as they are written: `no`, `1` and `true` are texts too.
        return {"type": ["string", "number", "boolean"]}

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        above: list[Any] = [base for base in schema["cls"].__bases__ if is_dataclass(base)]
        for base in above:  # pydantic does not find the texts below the fields
            inherited = TypeAdapter(base).json_schema(schema_generator=_Schema)["anyOf"][-1]["properties"]
            for name, about in inherited.items():
                found["properties"][name].setdefault("description", about["description"])
        found["description"] = schema["cls"].__doc__  # an older pydantic leaves it out
        for about in (found, *found["properties"].values()):
            about["description"] = " ".join(about["description"].split())
        return {"anyOf": [self.str_schema({}), found]} if schema["cls"].shorthand else found

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_default_value(self, schema: Any) -> Any:
        factory = schema.get("default_factory")
        return super().get_default_value(schema) if factory is None else factory()


def json_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of configuration files."""
    root = TypeAdapter(Config).json_schema(schema_generator=_Schema)
    definitions = root.pop("$defs")
    about = "another configuration to inherit from, relative to this file"
    root["properties"]["base"] = {"type": "string", "description": about}
    link = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/Config"}
    return {**link, "$defs": {"Config": root, **definitions}}
