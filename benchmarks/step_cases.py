"""The training steps that `benchmarks.step_hashes` hashes: small models, and the list of all cases.

Every dimension (engine, basis, dtype, model, form of the losses, ...) is covered by some cases; not
every combination is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from attittud import Eta, preset, presets

ETA = Eta(neutral=0.9, helpful=1.1, harmful=-0.5)
COMPILED = "aot_eager"


@dataclass(frozen=True)
class Case:
    """Five training steps of one configuration."""

    device: str = "cpu"
    kind: str = "one"
    """`one` process, two workers as `group`, `ddp` or `fsdp`, or COMPILED."""
    engine: str = "loop"
    basis: str = "sketch"
    dtype: str = "float32"
    model: str = "mlp"
    form: str = "plain"
    """How losses are given: words that `step_hashes` looks for, or `captured`."""
    event: str = ""
    """What happens before step 3, which is between two refreshes."""
    autocast: str = ""
    """`forward16`: around each forward pass. `step16`: around the whole step."""
    scale: float = 1.0
    """Factor of all losses. NaN breaks one primary example of step 2."""
    shares: tuple[int, int] = (2, 1)
    """How two workers divide the primary examples."""
    guide: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the guide."""

    @property
    def name(self) -> str:
        """All that is not as usual; engine, basis, dtype and model in any case."""
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "guide":
                words += [f"{name}={setting}" for name, setting in value.items()]
            elif each.name in ("engine", "basis", "dtype", "model"):
                words.append(value)
            elif value != each.default and isinstance(value, str):
                words.append(value)
            elif value != each.default:
                words.append(f"{each.name}={value}")
        return "/".join(words).replace("torch.", "").replace(" ", "")

    @property
    def workers(self) -> int:
        return {"group": 2, "ddp": 2, "fsdp": 2}.get(self.kind, 1)

    @property
    def by_verbs(self) -> bool:
        """Whether losses are given one after the other, by several verbs."""
        words = ("verbs", "auxiliary_first", "accumulated")
        return any(word in self.form for word in words)

    def settings(self) -> dict[str, Any]:
        """All arguments of the guide."""
        settings: dict[str, Any] = {"eta": ETA, "primary_weight": 0.3, "rank": 3, "seed": 5}
        settings |= {"refresh_every": 2, "engine": self.engine, "basis": self.basis}
        if "judged" in self.form:
            settings |= JUDGED
        if "named" in self.form:
            far = Eta(neutral=0.2, helpful=1, harmful=0)
            settings["eta"] = {"near": settings["eta"], "far": far}
            settings["auxiliary_weight"] = {"near": 1.0, "far": 0.3}
        settings |= self.guide
        if "preset" in settings:
            settings |= preset(settings.pop("preset"))
        if "parameters" in settings:
            prefix = settings["parameters"]
            settings["parameters"] = lambda name, _: name.startswith(prefix)
        return settings


# ------------------------------------------------------------------------------------------- models


class Call(nn.Module):
    """A function of the input, as a module."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Tensor:
        return self.function(x)


class Positions(nn.Module):
    """A parameter without a layer, added to sequences of four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(0.3 * torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places


def perceptron(*between: nn.Module, width: int = 6) -> nn.Sequential:
    first = [nn.Linear(5, width), *between, nn.Tanh()]
    return nn.Sequential(*first, nn.Linear(width, width), nn.Tanh())


def convolutions(norm: Callable[[int], nn.Module], **options: Any) -> nn.Sequential:
    first = [nn.Conv2d(2, 4, 3, padding=1), norm(4), nn.ReLU(inplace=True)]
    second = [nn.Conv2d(4, 4, 3, padding=1, **options), norm(4), nn.ReLU()]
    pooled = Call(lambda x: x.mean((2, 3)))
    return nn.Sequential(*first, *second, pooled, nn.Linear(4, 6))


def sequences(layer: nn.Module, last: Callable[[Any], Tensor]) -> nn.Sequential:
    positions = Positions()
    return nn.Sequential(nn.Embedding(4, 6), positions, layer, Call(last))


BODIES: dict[str, Callable[[], nn.Module]] = {
    "mlp": perceptron,
    # Long enough for arithmetic in chunks, and for "auto" to choose "hooks".
    "wide": lambda: nn.Sequential(perceptron(width=360), nn.Linear(360, 6)),
    "norms": lambda: perceptron(nn.LayerNorm(6), nn.GELU(), nn.RMSNorm(6)),
    "dropout": lambda: perceptron(nn.Dropout(0.3)),
    "cnn": lambda: convolutions(nn.BatchNorm2d),
    "cnn_group_norm": lambda: convolutions(
        lambda channels: nn.GroupNorm(2, channels), groups=2, stride=2, bias=False
    ),
    "channels_last": lambda: convolutions(lambda _: nn.Identity()),
    "embedding": lambda: nn.Sequential(
        nn.Embedding(1100, 3, padding_idx=1), nn.Flatten(), nn.Linear(12, 6)
    ),
    "tied": lambda: nn.Sequential(
        nn.Embedding(4, 6), Call(lambda x: x.mean(1)), nn.Linear(6, 6), nn.Tanh()
    ),
    "transformer": lambda: sequences(
        nn.TransformerEncoderLayer(6, 2, 12, 0.1, batch_first=True), lambda x: x.mean(1)
    ),
    # "auto" falls back to "loop" here: "hooks" has no rules for recurrent layers.
    "lstm": lambda: sequences(nn.LSTM(6, 6, batch_first=True), lambda x: x[0][:, -1]),
    "frozen": perceptron,
    "unused": perceptron,
}


class TwoHeads(nn.Module):
    """A body with six features, a head for the primary task and one for the auxiliary task."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.body: Any = BODIES[model]()
        self.heads: Any = nn.ModuleDict({"primary": nn.Linear(6, 3), "auxiliary": nn.Linear(6, 4)})
        if model == "channels_last":
            self.to(memory_format=torch.channels_last)
        if model == "tied":
            self.heads["auxiliary"].weight = self.body[0].weight
        if model == "frozen":
            self.body[0].weight.requires_grad_(False)
        if model == "unused":
            self.extra = nn.Linear(3, 3)

    def forward(self, x: Tensor, head: str) -> Any:
        hidden = self.body(x)
        if head == "both":
            return self.heads["primary"](hidden), self.heads["auxiliary"](hidden)
        return self.heads[head](hidden)


def inputs(model: str) -> Tensor:
    """24 examples."""
    if model in ("embedding", "tied", "transformer", "lstm"):
        return torch.randint(4, (24, 4))
    if model.startswith("cnn"):
        return torch.randn(24, 2, 6, 6)
    if model == "channels_last":
        return torch.randn(24, 2, 6, 6).to(memory_format=torch.channels_last)
    return torch.randn(24, 5)


# -------------------------------------------------------------------------------------------- cases

NAN = float("nan")
DTYPES = ("float32", "float64", "bfloat16")
BASES = ("sketch", "svd", "exact", "mean", "random", "canonical")
OF_EXAMPLES = BASES[:3]
MEAN = {"include_mean": True}
STORED = {"basis_dtype": torch.bfloat16}
FROZEN = {"batch_norm": "frozen"}
JUDGED = {"eta": "auto", "judge_every": 1}
SETTINGS = (
    *(MEAN, STORED, {"rank": 30}, {"rank": 1}, {"primary_weight": 0.0}, {"parameters": "body.2"}),
    {"auxiliary_weight": 0.5, "refresh_every": 1},
)
FORMS = (
    *("vector", "basis_losses", "named", "named_late", "judged", "judged_named", "one_forward"),
    *("three_verbs", "basis_losses_in_verbs", "auxiliary_first", "judged_named_in_verbs"),
    *("accumulated", "accumulated_basis_losses", "auxiliary_first_accumulated"),
    *("judged_accumulated", "asked_refresh"),
)
CALLABLE = (
    *("callable", "callable_basis_losses", "named_callable", "judged_callable"),
    "callable_in_verbs",
)
RESUMED = ("resume", "resume_without_basis", "resume_from_checkpoint")


def grid(**choices: Sequence[Any]) -> Iterator[Case]:
    """A case for every choice of one value for each field."""
    for values in itertools.product(*choices.values()):
        yield Case(**dict(zip(choices, values, strict=True)))


def one_process() -> Iterator[Case]:
    """Cases that need one process and no compiler, on any device."""
    yield from grid(basis=BASES, dtype=DTYPES)
    yield from grid(model=[*BODIES])
    yield from grid(basis=BASES, guide=[MEAN, STORED])
    yield from grid(guide=SETTINGS)
    yield from grid(model=["norms"], guide=[{"preset": name} for name in presets()])
    yield from grid(form=FORMS)
    yield from grid(form=("named", "accumulated", "judged_accumulated"), basis=("exact", "mean"))
    yield from grid(form=["judged"], model=["transformer"], guide=[{"judge_every": 2}])
    yield from grid(form=["basis_losses"], basis=["svd"], model=["cnn"], guide=[FROZEN])
    yield from grid(event=(*RESUMED, "freeze", "assign"), basis=("sketch", "canonical"))
    yield from grid(event=("resume", "retire"), form=["judged"])
    yield from grid(event=("resume", "resume_from_checkpoint"), guide=[STORED])
    yield from grid(scale=(0.0, 65536.0, 1e-18, NAN), basis=("sketch", "exact"))
    yield from grid(autocast=["forward16"], model=("mlp", "cnn_group_norm"))
    yield from grid(autocast=["step16"], model=["transformer"])
    # "hooks" and "auto" have to see the forward pass.
    hooks = {"engine": ["hooks"], "form": ["callable"]}
    yield from grid(**hooks, basis=OF_EXAMPLES, dtype=DTYPES)
    yield from grid(**hooks, model=[name for name in BODIES if name not in ("lstm", "cnn")])
    yield from grid(**hooks, basis=["exact"], model=["transformer"], guide=SETTINGS)
    yield from grid(**hooks, basis=["exact"], scale=(0.0, 1e10, NAN))
    yield from grid(**hooks, autocast=["forward16"], model=("mlp", "cnn_group_norm"))
    yield from grid(**hooks, autocast=["step16"], model=["transformer"])
    # BatchNorm mixes the examples of a batch.
    yield from grid(engine=["hooks"], form=["basis_losses"], model=["cnn"], guide=[FROZEN])
    yield from grid(form=CALLABLE, engine=["hooks"], basis=("sketch", "svd"))
    yield from grid(form=CALLABLE, engine=["auto"], model=["wide"])
    auto = {"engine": ["auto"], "form": ["callable"]}
    yield from grid(**auto, basis=["svd"], model=("wide", "cnn", "lstm", "tied", "transformer"))


def compiled() -> Iterator[Case]:
    yield from grid(kind=[COMPILED], basis=("sketch", "exact"), model=["norms"])
    yield from grid(kind=[COMPILED], engine=["auto"], form=["callable"], model=["norms"])


def two_workers() -> Iterator[Case]:
    forms = (
        *("plain", "basis_losses", "named_late", "judged", "judged_named_in_verbs"),
        *("three_verbs", "auxiliary_first", "accumulated", "one_forward"),
    )
    for kind in ("group", "ddp", "fsdp"):
        yield from grid(kind=[kind], basis=BASES, engine=["auto"], form=["vector"])
        norms = {"report_norms": "always"}
        yield from grid(kind=[kind], dtype=["float64"], guide=(MEAN, STORED, norms))
        yield from grid(kind=[kind], form=forms)
        yield from grid(kind=[kind], form=("named", "judged"), basis=["canonical"])
        yield from grid(kind=[kind], model=("transformer", "unused"))
        yield from grid(kind=[kind], form=("vector", "named"), shares=[(1, 0)])
        yield from grid(kind=[kind], scale=[NAN])
        yield from grid(kind=[kind], event=("resume", "resume_from_checkpoint"))
    hooks = {"engine": ["hooks"], "form": ["callable"]}
    yield from grid(kind=("group", "ddp"), **hooks, model=["tied"], shares=[(2, 1), (1, 0)])


def on_a_gpu() -> Iterator[Case]:
    """The cases of one process, and others whose steps are captured as CUDA graphs."""
    for case in one_process():
        yield replace(case, device="cuda")
    graphs = {"device": ["cuda"], "form": ["captured"]}
    yield from grid(**graphs, basis=BASES, guide=[{}, MEAN])
    yield from grid(**graphs, engine=("loop", "hooks"), model=("wide", "norms", "channels_last"))
    yield from grid(**graphs, engine=("loop", "hooks"), model=["norms"], autocast=["step16"])
    yield from grid(**graphs, basis=("sketch", "canonical"), guide=[JUDGED])
    yield from grid(**graphs, guide=[STORED])
