"""What the adapters cannot do: errors with the culprit, the reason and the cure, before a run has cost anything."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attittud.guide import Guide

FSDP2 = """\
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8  # GPUs
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: SHARDED_STATE_DICT
"""


def check_trainer(trainer: Any) -> None:
    """Refuse settings of a Trainer under which there are no per-example primary gradients."""
    args = trainer.args
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            "DeepSpeed is not supported: its engine keeps gradients in buffers of its own, hides .grad and allows one backward "
            "per forward, so nothing can be decomposed. FSDP2 shards parameters, gradients and optimizer state as ZeRO-3 does. "
            f"Drop deepspeed= and launch with `accelerate launch --config_file fsdp2.yaml`, where fsdp2.yaml is:\n{FSDP2}"
        )
    if trainer.is_fsdp_enabled and getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1) != 2:
        raise ValueError(
            "FSDP of version 1 keeps parameters in flat buffers of its own, which cannot be decomposed; FSDP2 works. Launch with "
            f"`accelerate launch --config_file fsdp2.yaml`, where fsdp2.yaml is:\n{FSDP2}"
        )
    packed = {"packing": getattr(args, "packing", False), "padding_free": getattr(trainer, "padding_free", False)}
    for name, on in packed.items():
        if on:
            raise ValueError(
                f"{name}=True on the primary side: several primary examples in one row have no losses of their own. Set "
                f"{name}=False; auxiliary datasets may be packed (trl.pack_dataset, with "
                "DataCollatorForLanguageModeling(padding_free=True) in auxiliary_collators)"
            )
    if args.n_gpu > 1:
        raise ValueError(
            "several GPUs are visible to one process, which the Trainer drives by nn.DataParallel; launch one process per "
            "GPU (`accelerate launch` or `torchrun`), or set CUDA_VISIBLE_DEVICES"
        )
    if getattr(args, "activation_offloading", False):
        raise ValueError(
            "activation_offloading=True frees activations after one backward pass, a refresh needs several; use "
            "gradient_checkpointing=True instead"
        )
    if "lomo" in str(args.optim).lower():
        raise ValueError(
            f"optim={args.optim!r} updates parameters during backward, before they could be decomposed; use adamw"
        )
    mesh = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        if mesh is not None and getattr(mesh, name, 1) > 1:
            raise ValueError(
                f"{name}={getattr(mesh, name)}: tensor, context and sequence parallelism are not supported; use FSDP2"
            )


def check_strategy(strategy: Any) -> None:
    """Refuse strategies of Lightning under which there is no gradient to decompose."""
    for base in type(strategy).__mro__:
        if base.__name__ in ("DeepSpeedStrategy", "FSDPStrategy"):
            raise ValueError(
                f"{base.__name__} keeps parameters and gradients in buffers of its own, which cannot be decomposed; use "
                "ModelParallelStrategy (FSDP2) and call fully_shard in configure_model"
            )


def check_judges(guide: Guide, judge_dataset: Any) -> None:
    """Refuse eta="auto" without judges, and judges without eta="auto"."""
    if guide.judge_due and judge_dataset is None:
        raise ValueError(
            "eta='auto' needs judges: pass judge_dataset=, primary examples that are kept out of train_dataset"
        )
    if not guide.judge_due and judge_dataset is not None:
        raise ValueError(
            "judge_dataset= is only used with eta='auto', but every eta of this guide is fixed; leave it out"
        )


def check_batch(inputs: Any) -> None:
    """Refuse a primary batch in which rows are not examples."""
    packed = [name for name in ("cu_seq_lens_q", "seq_idx", "seq_lengths") if name in inputs]
    if packed or ("position_ids" in inputs and "attention_mask" not in inputs and inputs["input_ids"].shape[0] == 1):
        raise ValueError(
            f"the primary batch is packed or padding-free (it has {packed[0] if packed else 'position_ids'!r} and no padding): "
            "its examples have no losses of their own. Use a padding collator for train_dataset; auxiliary datasets may keep "
            "theirs in auxiliary_collators"
        )


def check_logits(outputs: Any, model: Any) -> Tensor:
    """Return the logits that a per-example loss needs."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"{type(model).__name__} returned no logits for a primary batch, as fused losses do (use_liger_kernel=True with "
            "fused_linear_cross_entropy). Set liger_kernel_config={'fused_linear_cross_entropy': False}, or pass "
            "primary_losses=, a function of (model, inputs); the auxiliary side may keep its fused loss"
        )
    return logits
