"""What a configuration may say: typed and documented fields, one dataclass for each section."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from attittud_lab.config.data import DataConfig
from attittud_lab.config.options import LATER, Batch, Flag, Limits, Place, Section, Share, Steps, Weight, known
from attittud_lab.errors import InputError, short

_MOST_SOURCES, _MOST_TRIES = 100, 100
_OVERFLOW = "32-bit weights overflow not far beyond it"

Part = Annotated[float, Limits(-1e10, 1e10, _OVERFLOW)]
PositiveWeight = Annotated[float, Limits(0, 1e10, _OVERFLOW, above="0 would leave the auxiliary data out")]
LearningRate = Annotated[float, Limits(0, 1e30, _OVERFLOW, above="it would train nothing")]
Rate = Annotated[float, Limits(0, 1e30, _OVERFLOW)]
Runs = Annotated[int, Limits(1, 1000, "every strategy has a run for each")]


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
    given: ClassVar[frozenset[str]] = frozenset()
    """What a configuration says of it, be it the default: an entry of compare.strategies leaves the rest open."""

    name: Annotated[str, known("strategy")] = "auto"
    """a strategy's name (`attittud train --help` lists them), or custom with eta below"""
    eta: EtaWeights | None = None
    """weights of the three parts; null takes those of the named strategy"""
    primary_weight: Weight | None = None
    """weight of the primary gradient on shared parameters, at least 0; null takes the strategy's own"""
    auxiliary_weight: Weight = 1.0
    """factor on the loss of every auxiliary source, beside their own weights"""
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
    """parameters that are not decomposed, by patterns of their names such as '*word_embeddings*'; they receive
    the auxiliary gradient as it is, and primary_weight times the primary one"""
    engine: Annotated[str, known("engine")] = "auto"
    """how products with the per-example Jacobian are computed, a name of attittud.engines()"""
    judge_every: Steps = field(default=4, metadata=LATER)
    """auto only: the judges, up to 64 validation examples, are heard in every n-th step"""
    ratio: Share = 0.1
    """replay only: share of the primary examples in the mixture"""
    decay: Share = 0.99
    """bloop only: how much of the running primary gradient is kept in each step"""


@dataclass(frozen=True)
class ModelConfig(Section):
    """The shared body; every task gets its own linear head. A bare name is enough: `model: small-cnn`."""

    shorthand = "name"

    name: Annotated[Place, known("model")] = "small-cnn"
    """a model's name (`attittud train --help` lists them)"""
    width: Annotated[int, Limits(1, 4096, "a layer has the square of it as weights")] = 64
    """hidden units of mlp, channels of small-cnn and text-cnn"""
    dropout: Annotated[float, Limits(0, 0.95)] = 0.0
    """share of activations dropped in training; 0 leaves hf: models their own"""
    head_init: Literal["default", "kaiming", "zero"] = "default"
    """initialisation of the heads: PyTorch's, Kaiming-normal fan-out (large for few classes), or zero"""
    pretrained: Flag = True
    """hf: and timm: only: start from the stored weights"""
    weights: Place | None = None
    """a weights.safetensors of an earlier run to start from: its body, and its heads of auxiliary sources that
    are here too; {seed} in it is replaced by the run's seed"""
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
    """micro-batches in which the batches of a step are taken, so that it needs less memory; its update stays the
    same"""
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
    """stop after so many seconds of training (the result then depends on the machine); null has no limit"""


_FINETUNE: dict[str, Any] = {"steps": 200, "lr": 1e-4}
"""Shorter and slower than the first phase, unless a configuration says otherwise."""


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
    """replay steps as CUDA graphs, several times faster for small networks; on other devices it has no effect.
    Strategies of a seed then share initialisation and batches, but not their dropout masks"""
    compile: Flag = field(default=False, metadata=LATER)
    """compile the shared body for training steps (torch.compile), which takes a minute or more for the first run
    in a process; results differ from those without it in rounding and dropout masks. Needs Triton on a GPU, a
    C++ compiler on a CPU; without these the body runs as usual"""
    deterministic: Flag = False
    """the same run gives the same bits on the same GPU (some operations are slower); a CPU always does"""
    reset_head: Flag = False
    """start finetune with a fresh primary head"""


def _strategies() -> list[StrategyConfig]:
    return [StrategyConfig(name=name) for name in ("pretrain", "pcgrad", "drop_harmful", "flip", "auto")]


@dataclass(frozen=True)
class CompareConfig(Section):
    """What `attittud compare` tries beside primary_only and tuned multitask, and what it calls a gain."""

    strategies: list[StrategyConfig] = field(default_factory=_strategies)
    """strategies to compare with the one above; primary_only and multitask take part in any case. What an entry
    does not say (rank, engine, exclude, refresh_every, basis_batch) is taken from the one above; all else has
    its default"""
    seeds: Annotated[int, Limits(2, 1000, "every strategy has a run for each")] = 5
    """paired runs of every strategy, with the seeds seed, seed + 1, ..."""
    weights: list[PositiveWeight] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    """factors on the auxiliary losses among which every strategy is tuned on validation, the same for all"""
    space: dict[str, list[str]] = field(default_factory=dict)
    """further settings to tune, by path, such as training.guided.lr: [1e-4, 1e-3]; a strategy without a
    primary_weight of its own choice is tuned in the others"""
    draws: Runs = 4
    """combinations of `space` that every strategy tries: the first values, and random others, the same for all"""
    tuning_seeds: Runs = 2
    """seeds on which they are tuned and a step is timed: the first ones"""
    equal: Literal["both", "steps"] = "both"
    """compare at equal steps and at equal seconds, or at equal steps alone, which are half of the runs"""
    budget: str | None = None
    """training time of each run at equal seconds, such as 90s, 30m or 1h30m; null takes that of multitask"""
    worthwhile: Weight = 0.005
    """smallest gain in the metric that is worth having: 0.005 is half a point of accuracy"""


@dataclass(frozen=True)
class Config(Section):
    """A whole job: data, model, training and the strategy."""

    seed: Annotated[int, Limits(0, 2**63 - 1)] = 0
    """seed of the initialisation and the order of examples; the same for every strategy"""
    output: Place = "runs"
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
    compare: CompareConfig = field(default_factory=CompareConfig)
    """for `attittud compare` alone"""
    log_every: Steps = 20
    """steps between two lines of metrics.jsonl (each waits for the device)"""
    log_layers: Flag = True
    """at evaluations, also log the norms of the three parts layer by layer"""
    checkpoint_every: Steps | None = 200
    """steps between two checkpoints, beside those at evaluations; null: none, an interrupted run starts over"""

    def __post_init__(self) -> None:
        """Refuse what does not go together; a message begins with the path of the culprit."""
        _check_data(self.data)
        _check_compare(self.compare)


def _check_data(data: DataConfig) -> None:
    if len(data.auxiliary) > _MOST_SOURCES:
        raise InputError(
            f"data.auxiliary: {len(data.auxiliary)} sources are given, at most {_MOST_SOURCES} are allowed: each has "
            "passes and a head of its own in every step; join those of a kind in one source"
        )
    for name in data.auxiliary:
        if not name.isidentifier():
            raise InputError(
                f"data.auxiliary: the name {short(name)!r} must be letters, digits and _, as it is part of metric names"
            )
    if "primary" in data.auxiliary:
        raise InputError("data.auxiliary: the name 'primary' is taken by the primary task; choose another one")
    if data.subsets is not None and data.seed is None:
        raise InputError(
            "data.subsets: with data.seed: null every seed has its own split already; leave one of them out"
        )


def _check_compare(compare: CompareConfig) -> None:
    for name in ("strategies", "weights", "space"):
        if len(getattr(compare, name)) > _MOST_TRIES:
            raise InputError(
                f"compare.{name}: has {len(getattr(compare, name))} entries, at most {_MOST_TRIES} are allowed: each of them is "
                "tried by training"
            )
    if not compare.weights or not all(weight > 0 for weight in compare.weights):
        raise InputError(f"compare.weights: give weights above 0, got {compare.weights}")
    if len(set(compare.weights)) < 2 and not compare.space:
        raise InputError(
            f"compare.weights: multitask is to be tuned, so give at least two different weights above 0, got {compare.weights}"
        )
    for path, values in compare.space.items():
        if not path.startswith(("training.", "model.", "strategy.")) or path.endswith((".steps", ".epochs", ".mode")):
            raise InputError(
                f"compare.space: {short(path)} cannot be tuned; all runs share their data and their steps. Give paths below "
                "training, model or strategy"
            )
        if not values:
            raise InputError(f"compare.space: {short(path)} has no values; give a list of them")
    if compare.tuning_seeds > compare.seeds:
        raise InputError(
            f"compare.tuning_seeds is {compare.tuning_seeds}, but there are only {compare.seeds} seeds; lower it, or raise "
            "compare.seeds"
        )


def to_dict(section: Section) -> dict[str, Any]:
    """A configuration, or a section of one, as plain mappings, lists and scalars."""
    return asdict(section)  # type: ignore[call-overload,no-any-return]  # all sections are dataclasses


class _Schema(GenerateJsonSchema):
    """As pydantic writes it, with what our YAML allows beyond."""

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        # Class names and the like are taken as they are written: `no`, `1` and `true` are texts too.
        return {"type": ["string", "number", "boolean"]}

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        above: list[Any] = [base for base in schema["cls"].__bases__ if is_dataclass(base)]
        for base in above:  # pydantic finds the texts below the fields of the class itself, not those of its base
            inherited = TypeAdapter(base).json_schema(schema_generator=_Schema)["anyOf"][-1]["properties"]
            for name, about in inherited.items():
                found["properties"][name].setdefault("description", about["description"])
        found["description"] = schema["cls"].__doc__  # older pydantic leaves it out
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
    base = {"type": "string", "description": "another configuration to inherit from, relative to this file"}
    root["properties"]["base"] = base
    link = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/Config"}
    return {**link, "$defs": {"Config": root, **definitions}}
