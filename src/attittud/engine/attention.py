"""The attention of `nn.MultiheadAttention`, written out, so that the recorder sees its projections.

`torch.nn.functional.multi_head_attention_forward` hands itself as a whole to whoever observes
torch's functions. The function here computes the same numbers, bit by bit, with projections that
are calls of `F.linear`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attittud._torch import canonical_mask, in_projection, in_projection_packed

MULTI_HEAD_ATTENTION = F.multi_head_attention_forward

# Arguments of torch's function in their order. Its modules pass the others by name.
_POSITIONAL = (
    *("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias"),
    *("bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias"),
)
_BY_NAME = {
    "training": True,
    "key_padding_mask": None,
    "need_weights": True,
    "attn_mask": None,
    "use_separate_proj_weight": False,
    "q_proj_weight": None,
    "k_proj_weight": None,
    "v_proj_weight": None,
    "static_k": None,
    "static_v": None,
    "average_attn_weights": True,
    "is_causal": False,
}


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name; None if `attend` does not support them.

    Examples are in the second dimension of `query`, `key` and `value`. Learned biases of keys and
    values, keys and values that are given in advance, and an attention to nothing are not
    supported.
    """
    arguments = _BY_NAME | dict(zip(_POSITIONAL, args, strict=False)) | kwargs
    unsupported = ("bias_k", "bias_v", "static_k", "static_v")
    if arguments["add_zero_attn"] or any(arguments[name] is not None for name in unsupported):
        return None
    if arguments["query"].ndim != 3:  # a single example
        return None
    return arguments


def attend(arguments: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the result of attention (T x m x E), and its weights or None if nobody needs them.

    The result is softmax(Q Kᵀ / √d + mask) V for each head, with Q, K and V projected from T x m x
    E tensors. The weights are averaged over the heads, if the arguments ask for it.
    """
    heads = arguments["num_heads"]
    length, examples, features = arguments["query"].shape
    size = features // heads
    mask, is_causal = _mask(arguments)
    q, k, v = [_by_head(x, examples * heads, size) for x in _projections(arguments)]
    dropout = 0.0
    if arguments["training"]:
        dropout = arguments["dropout_p"]
    # torch takes its fused function only where nobody needs the weights; both have bits of their own.
    weights = None
    if arguments["need_weights"]:
        scaled = q * math.sqrt(1.0 / float(size))
        if mask is None:
            scores = torch.bmm(scaled, k.mT)
        else:
            scores = torch.baddbmm(mask, scaled, k.mT)
        weights = F.softmax(scores, dim=-1)
        if dropout > 0.0:
            weights = F.dropout(weights, p=dropout)
        out = torch.bmm(weights, v).transpose(0, 1)
        weights = weights.view(examples, heads, length, -1)
        if arguments["average_attn_weights"]:
            weights = weights.mean(dim=1)
    else:
        if mask is not None:
            if mask.shape[0] == 1:  # shared by all examples and heads
                mask = mask.unsqueeze(0)
            else:
                mask = mask.view(examples, heads, -1, k.shape[1])
        q, k, v = [x.view(examples, heads, -1, size) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal).permute(2, 0, 1, 3)
    out = out.reshape(length, examples, features)
    return F.linear(out, arguments["out_proj_weight"], arguments["out_proj_bias"]), weights


def _projections(arguments: dict[str, Any]) -> list[Tensor]:
    """Q, K and V: T x m x E."""
    inputs = arguments["query"], arguments["key"], arguments["value"]
    bias = arguments["in_proj_bias"]
    if not arguments["use_separate_proj_weight"]:
        return list(in_projection_packed(*inputs, arguments["in_proj_weight"], bias))
    weights = arguments["q_proj_weight"], arguments["k_proj_weight"], arguments["v_proj_weight"]
    biases = (None, None, None)
    if bias is not None:
        biases = bias.chunk(3)
    return list(in_projection(*inputs, *weights, *biases))


def _by_head(x: Tensor, count: int, size: int) -> Tensor:
    """T x m x E -> (m heads) x T x size."""
    return x.view(x.shape[0], count, size).transpose(0, 1)


def _mask(arguments: dict[str, Any]) -> tuple[Tensor | None, bool]:
    """Return what is added to the scores, and whether torch's fused function adds a causal mask.

    The first joins the attention mask and the mask of padded keys, with -inf where a query must not
    see a key: (m · heads) x T x S, with 1 in place of m · heads without padding if all share a mask,
    and 1 in place of T if only keys are padded. It is None if nothing is added.
    """
    query = arguments["query"]
    mask = arguments["attn_mask"]
    padding = arguments["key_padding_mask"]
    is_causal = arguments["is_causal"]
    heads = arguments["num_heads"]
    if is_causal and padding is None and not arguments["need_weights"]:
        # As in torch: `is_causal` promises that the attention mask is the causal one, which the
        # fused function makes by itself.
        return None, True
    if mask is not None:
        mask = _added(mask, "attn_mask", query.dtype)
        if mask.ndim == 2:
            mask = mask.unsqueeze(0)
    if padding is None:
        return mask, is_causal
    padding = _added(padding, "key_padding_mask", query.dtype)
    examples, length = padding.shape
    padding = padding.view(examples, 1, 1, length).expand(-1, heads, -1, -1)
    padding = padding.reshape(examples * heads, 1, length)
    if mask is not None:
        padding = mask + padding
    return padding, False


def _added(mask: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers to add: -inf where a mask of booleans is true."""
    numbers: Tensor | None = canonical_mask(mask, name, None, "", dtype, check_other=False)
    assert numbers is not None
    return numbers
