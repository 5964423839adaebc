"""Attention written out gives the bits of torch's own function, with the same random numbers."""

import pytest
import torch
from torch import nn

from attittud.engine.attention import MULTI_HEAD_ATTENTION, arguments_of, attend

T, S, M, E = 4, 5, 3, 8
MASKS = {
    "none": {},
    "booleans": {"attn_mask": torch.ones(T, S, dtype=torch.bool).triu(1)},
    "numbers": {"attn_mask": torch.linspace(-1, 1, T * S).view(T, S)},
    "for_each_head": {"attn_mask": torch.linspace(-1, 1, 2 * M * T * S).view(2 * M, T, S)},
    "padding": {"key_padding_mask": torch.arange(S) >= torch.tensor([[5], [3], [4]])},
    "both": {
        "attn_mask": torch.ones(T, S, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.arange(S) >= torch.tensor([[5], [3], [4]]),
    },
    "causal": {"attn_mask": torch.ones(T, S, dtype=torch.bool).triu(1), "is_causal": True},
}


def arguments(kind: str, dropout: float) -> tuple:
    torch.manual_seed(0)
    sizes = {"kdim": 6, "vdim": 7} if kind == "other_sizes" else {}
    module = nn.MultiheadAttention(E, 2, bias=kind != "no_bias", **sizes)
    query = torch.randn(T, M, E)
    key = torch.randn(S, M, module.kdim)
    value = key if kind == "keys_are_values" else torch.randn(S, M, module.vdim)
    if kind == "self":
        query = key = value = torch.randn(S, M, E)[:T]
    projections = {"use_separate_proj_weight": module.in_proj_weight is None}
    projections |= {f"{name}_proj_weight": getattr(module, f"{name}_proj_weight") for name in "qkv"}
    out = module.out_proj
    inputs = (query, key, value, E, 2, module.in_proj_weight, module.in_proj_bias)
    others = (None, None, False, dropout, out.weight, out.bias)
    return (*inputs, *others), projections


KINDS = ["self", "keys_are_values", "other_sizes", "no_bias"]
CASES = [*(("separate", mask) for mask in MASKS), *((kind, "none") for kind in KINDS)]


@pytest.mark.parametrize(("need_weights", "dropout"), [(False, 0.5), (True, 0.0)])
@pytest.mark.parametrize(("kind", "mask"), CASES)
def test_attention_written_out_equals_torchs(kind, mask, need_weights, dropout):
    args, options = arguments(kind, dropout)
    options |= {"need_weights": need_weights, **MASKS[mask]}
    results = []
    for function in (
        MULTI_HEAD_ATTENTION,
        lambda *args, **options: attend(arguments_of(args, options)),
    ):
        torch.manual_seed(1)
        results.append(function(*args, **options))
    assert torch.equal(results[0][0], results[1][0])
    if need_weights:
        assert torch.equal(results[0][1], results[1][1])
    else:
        assert results[1][1] is None


@pytest.mark.parametrize("name", ["bias_k", "static_k"])
def test_unusual_arguments_are_not_supported(name):
    args, options = arguments("separate", 0.0)
    assert arguments_of(args, options) is not None
    if name == "bias_k":
        args = (*args[:7], torch.zeros(1, 1, E), torch.zeros(1, 1, E), *args[9:])
    else:
        options |= {"static_k": torch.zeros(2 * M, S, E // 2)}
    assert arguments_of(args, options) is None
