"""What a configuration may say: typed and documented fields, one dataclass for each section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from attittud_lab.config.data import DataConfig
from attittud_lab.config.options import option
from attittud_lab.errors import InputError


def _strategy_name(name: str) -> None:
    from attittud_lab.strategies import find

    find(name)


def _model_name(name: str) -> None:
    from attittud_lab.models import find

    find(name)


def _above_zero(value: float | None) -> None:
    if value == 0:
        raise InputError("must be above 0; leave it out, or null, to count steps instead")


@dataclass(frozen=True)
class EtaWeights:
    """Weights of the three parts of an auxiliary gradient: 1 keeps a part, 0 drops it, -1 reverses it."""

    neutral: float = option(1.0, "weight of the part outside of the primary task's subspace")
    helpful: float = option(1.0, "weight of the part that agrees with the primary gradient")
    harmful: float = option(0.0, "weight of the part that opposes the primary gradient")


@dataclass(frozen=True)
class StrategyConfig:
    """How the gradients of the two tasks become one update. A bare name is enough: `strategy: auto`."""

    shorthand = "name"
    given: ClassVar[frozenset[str]] = frozenset()
    """What a configuration says of it, be it the default: an entry of compare.strategies leaves the rest open."""

    name: str = option(
        "auto", "a strategy's name (`attittud train --help` lists them), or custom with eta below", check=_strategy_name
    )
    eta: EtaWeights | None = option(None, "weights of the three parts; null takes those of the named strategy")
    primary_weight: float | None = option(
        None,
        "weight of the primary gradient on shared parameters, at least 0; null takes the strategy's own",
        minimum=0,
    )
    auxiliary_weight: float = option(
        1.0, "factor on the loss of every auxiliary source, beside their own weights", minimum=0
    )
    basis: Literal["sketch", "svd", "exact", "mean", "random", "canonical"] | None = option(
        None, "subspace in which the tasks are compared; null takes the strategy's own (sketch for most)"
    )
    rank: int = option(10, "dimension k of that subspace", minimum=1, maximum=4096)
    refresh_every: int | None = option(
        None, "the basis is recomputed in every n-th step; null takes the strategy's own (10 for most)", minimum=1
    )
    include_mean: bool = option(False, "append the current primary gradient as last direction of the basis")
    basis_batch: int | None = option(
        None,
        "examples m that a refresh looks at, other ones than the step's; null uses the step's primary batch",
        minimum=2,
    )
    exclude: list[str] = option(
        [],
        "parameters that are not decomposed, by patterns of their names such as '*word_embeddings*'; they receive the auxiliary "
        "gradient as it is, and primary_weight times the primary one",
        later=True,
    )
    engine: Literal["auto", "loop", "batched", "hooks", "implicit"] = option(
        "auto",
        "how products with the per-example Jacobian are computed; implicit stores no basis and needs basis: exact",
    )
    judge_every: int = option(
        4, "auto only: the judges, up to 64 validation examples, are heard in every n-th step", minimum=1, later=True
    )
    ratio: float = option(0.1, "replay only: share of the primary examples in the mixture", minimum=0, maximum=1)
    decay: float = option(
        0.99, "bloop only: how much of the running primary gradient is kept in each step", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class ModelConfig:
    """The shared body; every task gets its own linear head. A bare name is enough: `model: small-cnn`."""

    shorthand = "name"

    name: str = option(
        "small-cnn",
        "mlp, small-cnn, resnet-18, wideresnet-22-4 (any wideresnet-DEPTH-WIDTH), text-cnn, hf:FOLDER or timm:NAME",
        path=True,
        check=_model_name,
    )
    width: int = option(64, "hidden units of mlp, channels of small-cnn and text-cnn", minimum=1)
    dropout: float = option(
        0.0, "share of activations dropped in training; 0 leaves hf: models their own", minimum=0, maximum=0.95
    )
    head_init: Literal["default", "kaiming", "zero"] = option(
        "default", "of the heads: PyTorch's, Kaiming-normal fan-out (large for few classes), or zero"
    )
    pretrained: bool = option(True, "hf: and timm: only: start from the stored weights")
    weights: str | None = option(
        None,
        "a weights.safetensors of an earlier run to start from: its body, and its heads of auxiliary sources that are here too; "
        "{seed} in it is replaced by the run's seed",
        path=True,
    )
    freeze: list[str] = option(
        [], "parameters that are not trained, by patterns of their names such as 'body.*'", later=True
    )


@dataclass(frozen=True)
class PhaseConfig:
    """One phase of training."""

    steps: int = option(1000, "updates, unless epochs is given", minimum=1)
    epochs: float | None = option(
        None,
        "instead of steps: passes over the largest auxiliary source (guided) or the primary set (finetune)",
        minimum=0,
        check=_above_zero,
    )
    batch_size: int = option(64, "examples of each auxiliary source in a step of the guided phase", minimum=1)
    primary_batch: int = option(32, "primary examples in a step", minimum=1)
    accumulate: int = option(
        1,
        "micro-batches in which the batches of a step are taken, so that it needs less memory; its update stays the same",
        minimum=1,
        later=True,
    )
    optimizer: Literal["adam", "adamw", "sgd"] = option("adam", "the optimizer")
    lr: float = option(1e-3, "learning rate", minimum=0)
    weight_decay: float = option(0.0, "weight decay of the optimizer", minimum=0)
    momentum: float = option(0.9, "momentum of sgd", minimum=0, maximum=1)
    schedule: Literal["constant", "cosine", "linear", "plateau"] = option(
        "constant", "of the learning rate; plateau halves it after 4 evaluations without improvement, down to lr_min"
    )
    lr_min: float = option(1e-5, "where cosine, linear and plateau end", minimum=0)
    warmup: int = option(0, "steps in which the learning rate rises from 0", minimum=0)
    clip: float | None = option(1.0, "the combined gradient's norm is clipped to this; null does not clip", minimum=0)
    patience: int | None = option(
        None, "stop after this many evaluations without improvement; null never stops early", minimum=1
    )
    evaluations: int = option(20, "how often validation is looked at, evenly over the phase", minimum=1)
    select: Literal["best", "last"] = option(
        "best", "the model that leaves the phase: best on validation, or the last one"
    )
    seconds: float | None = option(
        None,
        "stop after so many seconds of training (the result then depends on the machine); null has no limit",
        minimum=0,
    )


def _finetune() -> PhaseConfig:
    return PhaseConfig(steps=200, lr=1e-4)


@dataclass(frozen=True)
class TrainingConfig:
    """The paper's two phases, or joint training."""

    mode: Literal["two_phase", "joint"] = option(
        "two_phase", "two_phase: guided, then finetune on the primary set alone; joint: guided only"
    )
    guided: PhaseConfig = option(PhaseConfig, "auxiliary data guided by the primary task")
    finetune: PhaseConfig = option(_finetune, "primary data alone")
    metric: Literal["auto", "accuracy", "macro_f1", "auc"] = option(
        "auto",
        "validation figure that chooses the model, ties by loss; auto: accuracy, or auc for several labels at once",
    )
    precision: Literal["fp32", "bf16"] = option("fp32", "bf16 runs the forward pass under autocast")
    channels_last: bool = option(
        False, "image networks in the memory order that GPUs compute fastest in half precision"
    )
    cuda_graph: bool = option(
        False,
        "replay steps as CUDA graphs, several times faster for small networks; on other devices it has no effect. Strategies "
        "of a seed then share initialisation and batches, but not their dropout masks",
    )
    compile: bool = option(
        False,
        "compile the shared body for training steps (torch.compile), which takes a minute or more for the first run in a "
        "process; results differ from those without it in rounding and dropout masks. Needs Triton on a GPU, a C++ compiler on "
        "a CPU; without these the body runs as usual",
        later=True,
    )
    deterministic: bool = option(
        False, "the same run gives the same bits on the same GPU (some operations are slower); a CPU always does"
    )
    reset_head: bool = option(False, "start finetune with a fresh primary head")


def _strategies() -> list[StrategyConfig]:
    return [StrategyConfig(name=name) for name in ("pretrain", "pcgrad", "drop_harmful", "flip", "auto")]


@dataclass(frozen=True)
class CompareConfig:
    """What `attittud compare` tries beside primary_only and tuned multitask, and what it calls a gain."""

    strategies: list[StrategyConfig] = option(
        _strategies,
        "strategies to compare with the one above; primary_only and multitask take part in any case. What an entry does not say "
        "(rank, engine, exclude, refresh_every, basis_batch) is taken from the one above; all else has its default",
    )
    seeds: int = option(5, "paired runs of every strategy, with the seeds seed, seed + 1, ...", minimum=2)
    weights: list[float] = option(
        [0.1, 0.3, 1.0],
        "factors on the auxiliary losses among which every strategy is tuned on validation, the same for all",
    )
    space: dict[str, list[str]] = option(
        {},
        "further settings to tune, by path, such as training.guided.lr: [1e-4, 1e-3]; a strategy without a primary_weight of "
        "its own choice is tuned in the others",
    )
    draws: int = option(
        4,
        "combinations of `space` that every strategy tries: the first values, and random others, the same for all",
        minimum=1,
    )
    tuning_seeds: int = option(2, "seeds on which they are tuned and a step is timed: the first ones", minimum=1)
    equal: Literal["both", "steps"] = option(
        "both", "compare at equal steps and at equal seconds, or at equal steps alone, which are half of the runs"
    )
    budget: str | None = option(
        None, "training time of each run at equal seconds, such as 90s, 30m or 1h30m; null takes that of multitask"
    )
    worthwhile: float = option(
        0.005, "smallest gain in the metric that is worth having: 0.005 is half a point of accuracy", minimum=0
    )


@dataclass(frozen=True)
class Config:
    """A whole job: data, model, training and the strategy."""

    seed: int = option(0, "of the initialisation and the order of examples; the same for every strategy", minimum=0)
    output: str = option("runs", "folder in which run folders are made", path=True)
    device: str = option("auto", "auto, cpu, cuda, cuda:1 or mps")
    data: DataConfig = option(DataConfig, "the primary and the auxiliary data")
    model: ModelConfig = option(ModelConfig, "the network")
    training: TrainingConfig = option(TrainingConfig, "how long and how fast")
    strategy: StrategyConfig = option(StrategyConfig, "how the two gradients become one")
    compare: CompareConfig = option(CompareConfig, "for `attittud compare` alone")
    log_every: int = option(20, "steps between two lines of metrics.jsonl (each waits for the device)", minimum=1)
    log_layers: bool = option(True, "at evaluations, also log the norms of the three parts layer by layer")
    checkpoint_every: int | None = option(
        200,
        "steps between two checkpoints, beside those at evaluations; null: none, an interrupted run starts over",
        minimum=1,
    )

    def __post_init__(self) -> None:
        from attittud_lab.config.checks import check

        check(self)


def to_dict(value: Any) -> Any:
    """A configuration as plain mappings, lists and scalars."""
    if hasattr(value, "__dataclass_fields__"):
        return {entry.name: to_dict(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value
