"""Small two-headed models with their data: the architectures on which everything must agree.

``problem(name)`` builds one. All models answer ``model(x, head)`` with logits; ``losses()`` is the
vector of primary losses and ``loss()`` the scalar auxiliary one. The sizes are tiny on purpose: the
oracle forms the whole Jacobian.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)

CLASSES = {"primary": 3, "auxiliary": 4}


class TwoHeads(nn.Module):
    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleDict({name: nn.Linear(features, n) for name, n in CLASSES.items()})

    def forward(self, x: Tensor, head: str) -> Tensor:
        return self.heads[head](self.body(x))


class Tied(nn.Module):
    """The embedding is the decoder of the auxiliary task, as a module or as a function."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 5)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, CLASSES["primary"])
        self.functional = functional
        if not functional:
            self.decoder = nn.Linear(5, 9, bias=False)
            self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor, head: str) -> Tensor:
        h = torch.tanh(self.mix(self.embedding(x).mean(1)))
        if head == "primary":
            return self.head(h)
        return F.linear(h, self.embedding.weight) if self.functional else self.decoder(h)


class Transformer(nn.Module):
    """Token and positional embeddings (a raw parameter) and one encoder layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.positions = nn.Parameter(0.3 * torch.randn(4, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.tokens(x) + self.positions).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.tokens(x))[0][:, -1]


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again = nn.Linear(5, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        return torch.tanh(self.again(torch.tanh(self.again(h))))


class Odd(nn.Module):
    """A scalar parameter, a transposed (non-contiguous) one and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.transposed = nn.Parameter(torch.randn(5, 6).t())
        self.empty = nn.Parameter(torch.empty(0, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(
            self.temperature * torch.cat([F.linear(x, self.transposed)]) + self.empty.sum(0)
        )


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool = False) -> None:
        super().__init__()
        self.enter, self.inner = nn.Linear(5, 6), nn.Linear(6, 6)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        return checkpoint(lambda h: torch.tanh(self.inner(h)), h, use_reentrant=self.use_reentrant)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())


def cnn(norm: Callable[[int], nn.Module], groups: int = 1, inplace: bool = False) -> nn.Sequential:
    first = [nn.Conv2d(2, 4, 3, padding=1), norm(4), nn.ReLU(inplace)]
    second = [nn.Conv2d(4, 4, 3, stride=2, groups=groups, bias=False), norm(4), nn.ReLU(inplace)]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten())


def frozen() -> nn.Module:
    model = TwoHeads(mlp(), 6)
    model.body[0].weight.requires_grad_(False)
    return model


def unused() -> nn.Module:
    model = TwoHeads(mlp(), 6)
    model.extra, model.loose = nn.Linear(3, 3), nn.Parameter(torch.ones(2))
    return model


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


# name -> (model, kind of input)
ZOO: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mlp": (lambda: TwoHeads(mlp(), 6), "vectors"),
    "frozen": (frozen, "vectors"),
    "unused": (unused, "vectors"),
    "reused": (lambda: TwoHeads(Reused(), 6), "vectors"),
    "odd": (lambda: TwoHeads(Odd(), 6), "vectors"),
    "checkpointed": (lambda: TwoHeads(Checkpointed(), 6), "vectors"),
    "layer_norm": (
        lambda: TwoHeads(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU()), 6),
        "vectors",
    ),
    "cnn_batch_norm": (lambda: TwoHeads(cnn(nn.BatchNorm2d), 8), "images"),
    "cnn_group_norm": (lambda: TwoHeads(cnn(group_norm, groups=2, inplace=True), 8), "images"),
    "channels_last": (
        lambda: TwoHeads(cnn(nn.BatchNorm2d), 8).to(memory_format=torch.channels_last),
        "channels_last",
    ),
    "embedding": (
        lambda: TwoHeads(nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Tanh()), 12),
        "tokens",
    ),
    "tied_module": (lambda: Tied(functional=False), "tokens"),
    "tied_function": (lambda: Tied(functional=True), "tokens"),
    "transformer": (lambda: TwoHeads(Transformer(), 8), "tokens"),
    "lstm": (lambda: TwoHeads(Recurrent(), 5), "tokens"),
}

SEPARABLE = [name for name in ZOO if name != "lstm"]
"""The models that the engine `hooks` supports."""


def inputs(kind: str, n: int) -> Tensor:
    if kind == "tokens":
        return torch.randint(9, (n, 4))
    if kind == "vectors":
        return torch.randn(n, 5)
    x = torch.randn(n, 2, 6, 6)
    return x.to(memory_format=torch.channels_last) if kind == "channels_last" else x


@dataclass
class Problem:
    """A model, a primary batch and an auxiliary batch."""

    model: nn.Module
    xp: Tensor
    yp: Tensor
    xa: Tensor
    ya: Tensor

    def losses(self, at: slice = slice(None)) -> Tensor:
        """Per-example primary losses of (a slice of) the primary batch."""
        return F.cross_entropy(self.model(self.xp[at], "primary"), self.yp[at], reduction="none")

    def loss(self, at: slice = slice(None)) -> Tensor:
        """Mean auxiliary loss of (a slice of) the auxiliary batch."""
        return F.cross_entropy(self.model(self.xa[at], "auxiliary"), self.ya[at])

    def to(self, dtype: torch.dtype) -> "Problem":
        """An independent copy in another precision."""
        xs = [x.to(dtype) if x.is_floating_point() else x for x in (self.xp, self.xa)]
        return replace(self, model=copy.deepcopy(self.model).to(dtype), xp=xs[0], xa=xs[1])

    def copy(self) -> "Problem":
        return replace(self, model=copy.deepcopy(self.model))

    def grads(self) -> dict[str, Tensor | None]:
        return {name: p.grad for name, p in self.model.named_parameters()}


def problem(
    name: str = "mlp", dtype: torch.dtype = torch.float32, m: int = 6, n: int = 8, seed: int = 0
) -> Problem:
    """Model and data of a name in the zoo; the global RNG is left alone."""
    build, kind = ZOO[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        xp, xa = inputs(kind, m), inputs(kind, n)
        auxiliary_classes = 9 if name.startswith("tied") else CLASSES["auxiliary"]
        yp, ya = torch.randint(CLASSES["primary"], (m,)), torch.randint(auxiliary_classes, (n,))
    return Problem(model, xp, yp, xa, ya).to(dtype)
