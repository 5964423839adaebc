"""One small model for each way a layer can use its parameters: where engines could differ.

``LAYERS[name]()`` returns a model; ``example_losses(model, x)`` is one loss for each example, and
no example's loss depends on another example. Only the engines look at these, so they have no second
head.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

M = 5  # examples


class Function(nn.Module):
    """A model from a function of itself and its input."""

    def __init__(
        self, forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(shape))


def vectors() -> Tensor:
    return torch.randn(M, 6)


def sequences() -> Tensor:
    return torch.randn(M, 4, 6)


def sequences_first() -> Tensor:
    return torch.randn(4, M, 6)


def images() -> Tensor:
    return torch.randn(M, 4, 7, 6)


def tokens() -> Tensor:
    return torch.randint(9, (M, 4))


def attention(batch_first: bool = True, **options) -> nn.Module:
    def forward(self, x):
        h = self.enter(x)
        return self.attention(h, h.flip(1 if batch_first else 0), h + 1, need_weights=False)[0]

    attention = nn.MultiheadAttention(6, 2, batch_first=batch_first, **options)
    return Function(forward, enter=nn.Linear(6, 6), attention=attention)


def vision_transformer(self, x):
    h = self.patches(x).flatten(2).mT
    h = torch.cat([self.cls.expand(x.shape[0], -1, -1), h], dim=1) + self.positions
    return self.layer(h)[:, 0] * self.scale.exp()


def bert_like(self, x):
    positions = torch.arange(x.shape[1]).unsqueeze(0)
    kinds = torch.zeros(x.shape, dtype=torch.long)
    return self.norm(self.words(x) + self.places(positions) + self.kinds(kinds))


def gpt_like(self, x):
    h = self.words(x) + self.places(torch.arange(x.shape[1]))
    h = torch.addmm(self.bias, h.view(-1, 6), self.mix).view(h.shape)
    return F.linear(torch.tanh(h), self.words.weight)


def llama_norm(self, x):
    h = self.enter(x)
    return self.scale * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6))


def low_rank(self, x):
    return self.base(x) + self.up(self.down(x)) * 2.0


def checkpointed(self, x):
    h = torch.tanh(self.enter(x))
    h = checkpoint(
        lambda h: self.norm(torch.relu(self.inner(h)) + self.shift), h, use_reentrant=False
    )
    return checkpoint(self.inner, h, use_reentrant=False)


def overwritten(self, x):
    h = self.enter(x)
    out = h + self.shift
    h.zero_()  # an addition does not need its data again
    return out


def prompts(self, x):
    prompt = self.prompt.unsqueeze(0).repeat(x.shape[0], 1, 1)
    return self.mix(torch.cat([prompt, self.enter(x)], dim=1)).cumsum(1)


class Contiguous(torch.autograd.Function):
    """A backward pass that loses the layout, like a frozen BatchNorm's on a GPU."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient.contiguous()


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient * w, (gradient * x).sum_to_size(w.shape)


def assigned(self, x):
    h = self.enter(x).clone()
    h[:, 0] = self.token
    return h


def conv(layer: nn.Module, *more: nn.Module) -> nn.Module:
    return nn.Sequential(layer, *more, nn.Tanh())


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), vectors),
    "linear_over_sequences": (
        lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.GELU(), nn.Linear(5, 3)),
        sequences,
    ),
    "linear_over_images": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), images),
    "linear_flattened": (
        lambda: Function(lambda self, x: self.a(x.view(-1, 6)).view(M, -1), a=nn.Linear(6, 3)),
        sequences,
    ),
    "in_place": (
        lambda: nn.Sequential(
            nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.LeakyReLU(0.1, inplace=True)
        ),
        sequences,
    ),
    "data_overwritten_after_an_addition": (
        lambda: Function(overwritten, enter=nn.Linear(6, 6), shift=weight(6)),
        vectors,
    ),
    "data_written_over_a_constant": (
        lambda: Function(
            lambda self, x: self.a(self.start.clone().copy_(x)),
            a=nn.Linear(6, 5),
            start=nn.Parameter(torch.zeros(M, 6), requires_grad=False),
        ),
        vectors,
    ),
    "conv1d": (lambda: conv(nn.Conv1d(4, 6, 3, padding=2, dilation=2)), sequences),
    "conv2d": (
        lambda: conv(
            nn.Conv2d(4, 6, 3, padding=(1, 0), stride=(2, 1)), nn.Conv2d(6, 2, 1, bias=False)
        ),
        images,
    ),
    "conv2d_grouped": (
        lambda: conv(
            nn.Conv2d(4, 8, (3, 2), groups=2, dilation=(1, 2)), nn.Conv2d(8, 8, 3, groups=8)
        ),
        images,
    ),
    "conv2d_same": (lambda: conv(nn.Conv2d(4, 4, (2, 4), padding="same")), images),
    "conv2d_channels_last_grouped": (
        lambda: conv(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
            nn.Conv2d(6, 2, 2, dilation=2, padding="same"),
        ).to(memory_format=torch.channels_last),
        lambda: images().to(memory_format=torch.channels_last),
    ),
    "conv2d_channels_last": (
        lambda: conv(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 2, 2)).to(memory_format=torch.channels_last),
        lambda: images().to(memory_format=torch.channels_last),
    ),
    "conv2d_frames": (
        lambda: Function(
            lambda self, x: self.c(x.flatten(0, 1)[:, None]).view(M, -1), c=nn.Conv2d(1, 2, 3)
        ),
        images,
    ),
    "conv3d": (
        lambda: conv(nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 1), groups=2)),
        lambda: torch.randn(M, 2, 3, 4, 5),
    ),
    "embedding": (lambda: nn.Embedding(9, 3), tokens),
    "embedding_padding": (
        # A module would make the negative number positive.
        lambda: Function(
            lambda self, x: F.embedding(x, self.table, padding_idx=-2), table=weight(9, 3)
        ),
        tokens,
    ),
    "embedding_computed": (
        lambda: Function(
            lambda self, x: F.embedding(x, torch.tanh(self.table)), table=weight(9, 3)
        ),
        tokens,
    ),
    "layer_norm": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6, eps=0.5), nn.Tanh()),
        sequences,
    ),
    "rms_norm": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.RMSNorm(6, eps=0.5), nn.Tanh()),
        sequences,
    ),
    "group_norm": (lambda: conv(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4, eps=0.5)), images),
    "instance_norm": (
        lambda: conv(nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, eps=0.5, affine=True)),
        images,
    ),
    "batch_norm_frozen": (
        lambda: conv(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, eps=0.5)).eval(),
        images,
    ),
    "attention": (attention, sequences),
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
        sequences,
    ),
    "vision_transformer": (
        lambda: Function(
            vision_transformer,
            patches=nn.Conv2d(4, 6, 3, 3),
            cls=weight(1, 1, 6),
            positions=weight(1, 5, 6),
            scale=weight(),
            layer=nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
        ),
        images,
    ),
    "bert_like": (
        lambda: Function(
            bert_like,
            words=nn.Embedding(9, 6),
            places=nn.Embedding(8, 6),
            kinds=nn.Embedding(2, 6),
            norm=nn.LayerNorm(6),
        ),
        tokens,
    ),
    "gpt_like": (
        lambda: Function(
            gpt_like,
            words=nn.Embedding(9, 6),
            places=nn.Embedding(8, 6),
            mix=weight(6, 6),
            bias=weight(6),
        ),
        tokens,
    ),
    "llama_norm": (lambda: Function(llama_norm, enter=nn.Linear(6, 6), scale=weight(6)), sequences),
    "low_rank": (
        lambda: Function(
            low_rank,
            base=nn.Linear(6, 6).requires_grad_(False),
            down=nn.Linear(6, 2, bias=False),
            up=nn.Linear(2, 6, bias=False),
        ),
        sequences,
    ),
    "raw_matrix": (
        lambda: Function(
            lambda self, x: torch.tanh(x @ self.w) @ self.v.T, w=weight(6, 5), v=weight(3, 5)
        ),
        sequences,
    ),
    "scalars": (
        lambda: Function(
            lambda self, x: torch.sigmoid(self.a * x + self.b) * self.c,
            a=weight(),
            b=weight(1),
            c=weight(6),
        ),
        sequences,
    ),
    "tied_modules": (
        lambda: Function(
            lambda self, x: F.linear(torch.tanh(self.e(x)), self.e.weight), e=nn.Embedding(9, 6)
        ),
        tokens,
    ),
    "called_three_times": (
        lambda: Function(lambda self, x: self.a(self.a(torch.tanh(self.a(x)))), a=nn.Linear(6, 6)),
        sequences,
    ),
    "weight_norm": (
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2)
        ),
        sequences,
    ),
    "masked_weight": (
        lambda: Function(
            lambda self, x: F.linear(x, self.w * self.w.tril() + self.v),
            w=weight(6, 6),
            v=weight(6, 6),
        ),
        vectors,
    ),
    "prompts": (
        lambda: Function(prompts, prompt=weight(2, 6), enter=nn.Linear(6, 6), mix=nn.Linear(6, 6)),
        sequences,
    ),
    "checkpointed": (
        lambda: Function(
            checkpointed,
            enter=nn.Linear(6, 6),
            inner=nn.Linear(6, 6),
            norm=nn.LayerNorm(6),
            shift=weight(6),
        ),
        sequences,
    ),
}


# Name -> (model, data, what the message must name). No engine but `hooks` minds.
LIMITS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "batch_norm_on_batch_statistics": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)),
        vectors,
        "'1'",
    ),
    "examples_meet_in_a_function": (
        lambda: Function(
            lambda self, x: self.a(x - x.mean(0)) * self.a(x).mean(0), a=nn.Linear(6, 4)
        ),
        vectors,
        "a.weight",
    ),
    "own_autograd_function": (
        lambda: Function(
            lambda self, x: Own.apply(self.a(x), self.w), a=nn.Linear(6, 4), w=weight(4)
        ),
        vectors,
        "gradient of w ",
    ),
    "scale_grad_by_freq": (
        lambda: nn.Embedding(9, 3, scale_grad_by_freq=True),
        tokens,
        "scale_grad_by_freq",
    ),
    "random_numbers_beside_a_parameter": (
        lambda: Function(
            lambda self, x: F.scaled_dot_product_attention(
                x, x, x, attn_mask=self.bias, dropout_p=0.5
            ),
            bias=weight(4, 4),
        ),
        sequences,
        "bias in scaled_dot_product_attention",
    ),
    "assigned_into_data": (
        lambda: Function(assigned, enter=nn.Linear(6, 6), token=weight(6)),
        sequences,
        "token in __setitem__",
    ),
    "linear_positions_first": (
        lambda: Function(lambda self, x: self.a(x).transpose(0, 1), a=nn.Linear(6, 5)),
        sequences_first,
        "a.weight, a.bias in linear",
    ),
    "conv_transpose": (
        lambda: conv(nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1)),
        images,
        "0.weight, 0.bias in conv_transpose2d",
    ),
    "embedding_bag": (
        lambda: nn.EmbeddingBag(9, 3, mode="mean"),
        tokens,
        "weight in embedding_bag",
    ),
    "prelu": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 4)),
        vectors,
        "1.weight in prelu",
    ),
    "lstm": (
        lambda: Function(lambda self, x: self.a(x)[0], a=nn.LSTM(6, 3, batch_first=True)),
        sequences,
        "a.bias_hh_l0 in lstm",
    ),
    "einsum": (
        lambda: Function(
            lambda self, x: torch.einsum("btc,hcd->bhtd", x, self.w).tanh(), w=weight(2, 6, 3)
        ),
        sequences,
        "w in einsum",
    ),
    "a_parameter_as_the_first_matrix": (
        lambda: Function(lambda self, x: torch.tanh(self.w @ x.mT), w=weight(5, 6)),
        sequences,
        "w in matmul",
    ),
    "distances": (
        lambda: Function(lambda self, x: torch.cdist(x, self.centres), centres=weight(3, 6)),
        sequences,
        "centres in cdist",
    ),
    "relative_positions": (
        lambda: Function(
            lambda self, x: self.a(x) + self.places(torch.arange(12).view(3, 4) % 4).sum((0, 1)),
            a=nn.Linear(6, 6),
            places=nn.Embedding(4, 6),
        ),
        sequences,
        "places.weight in embedding",
    ),
}


@dataclass
class Layer:
    model: nn.Module
    x: Tensor

    def losses(self) -> Tensor:
        """Sensitive to every output, differently."""
        out = self.model(self.x).flatten(1)
        target = torch.linspace(-1, 1, out.shape[1], dtype=out.dtype)
        return (out - target).square().mean(1) + 0.1 * (out * target).sum(1).tanh()


def layer(name: str, dtype: torch.dtype = torch.float64) -> Layer:
    build, data = LAYERS[name] if name in LAYERS else LIMITS[name][:2]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, x = build().to(dtype), data()
    return Layer(model, x.to(dtype) if x.is_floating_point() else x)
