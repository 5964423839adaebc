"""What protecting costs: steps of a language model with LoRA that learns new data while other data are protected.

    python -m benchmarks --only guard

All steps train the same model and take turns one by one, in every order that shifts them, so that neighbours in time are
compared. Two ratios have goals: A-GEM, which computes the protected gradient in every step, over the plain sum of both losses;
and methods that leave the protected pass out between refreshes over training on the new data alone, both for such a step
and for the mean over 30 steps with one refresh. Steps without a goal of their own have their turn in every third round only; a
ratio compares two steps of one round. Memory is the peak of a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attittud import Guide, preset
from attittud.losses import per_sequence_kl
from benchmarks.eager import median
from benchmarks.results import HERE
from benchmarks.timing import CORES, allocated, peak_bytes
from benchmarks.timing import seconds as seconds_of

MODELS = ("decoder_lora", "decoder_lora, checkpointing")
ALONE, SUM, TWO, KL = "new data alone", "sum of both losses", "sum, two backward passes", "sum with KL to the start"
EVERY, FEWEST, GOAL = 30, 20, 1.10
PAGE = HERE.parent / "docs" / "appendix" / "guard.md"
BEGIN, END = "<!-- costs: written by `python -m benchmarks.page` -->", "<!-- end of costs -->"
REFRESHED = ", refresh"
SKIPPING: dict[str, dict[str, Any]] = {
    "ogpsa": preset("ogpsa"),
    "gru every 30": preset("gru") | {"refresh_every": EVERY},
}
FRESH: dict[str, dict[str, Any]] = {"a_gem": preset("a_gem"), "pcgrad": preset("pcgrad"), "bloop": preset("bloop")}
PAIRS = {"a_gem": SUM, "pcgrad": SUM, "bloop": SUM, TWO: SUM, KL: SUM} | dict.fromkeys(SKIPPING, ALONE)
PAIRS |= {f"{name}{REFRESHED}": ALONE for name in SKIPPING}
OFTEN = {ALONE, SUM, "a_gem", *SKIPPING}
RARELY = 3
"""Rounds until all other steps have their turn again."""


class Decoder:
    """A causal language model of TinyLlama's sizes with LoRA on all linear layers, and a batch of each kind of data."""

    def __init__(self, *, device: str, tiny: bool, seed: int, checkpointing: bool) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
        sizes |= {"num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048}
        if tiny:
            sizes |= {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
            sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.rows, self.length = (2, 8) if tiny else (8, 512)
        with self.device:
            bare = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))
        if self.device.type == "cuda":
            bare = bare.bfloat16()  # frozen weights; peft keeps the adapters in float32
        if checkpointing:
            bare.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            bare.enable_input_require_grads()
        lora = LoraConfig(r=2 if tiny else 16, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(bare, lora).to(self.device).train()
        self.new, self.protected = (
            torch.randint(4, sizes["vocab_size"], (self.rows, self.length), device=self.device) for _ in range(2)
        )
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # The step is so small that the weights stay finite however often it is repeated.
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-6, fused=self.device.type == "cuda")

    @contextmanager
    def half(self) -> Iterator[None]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            yield

    def loss(self, tokens: Tensor) -> Tensor:
        with self.half():
            loss: Tensor = self.model(input_ids=tokens, labels=tokens).loss
        return loss

    def divergence(self, tokens: Tensor) -> Tensor:
        with self.half():
            with torch.no_grad(), self.model.disable_adapter():
                start = self.model(input_ids=tokens).logits
            return per_sequence_kl(self.model(input_ids=tokens).logits, start, tokens).mean()


def actions(work: Decoder) -> dict[str, Callable[[], None]]:
    """Whole training steps by name."""
    guides = {name: Guide(work.model, **settings) for name, settings in (FRESH | SKIPPING).items()}

    def whole(gradient: Callable[[], object]) -> Callable[[], None]:
        def step() -> None:
            work.optimizer.zero_grad(set_to_none=True)
            gradient()
            work.optimizer.step()

        return step

    def summed(protected: Callable[[Tensor], Tensor]) -> None:
        (work.loss(work.new) + protected(work.protected)).backward()

    def two_passes() -> None:
        work.loss(work.new).backward()
        work.loss(work.protected).backward()

    def guided(name: str, *, refresh: bool) -> Callable[[], object]:
        def gradient() -> object:
            # As in a trainer: the graph of one loss is freed before the other loss is computed.
            guide = guides[name]
            guide.primary(work.loss(work.protected)[None] if refresh else None, refresh=refresh)
            guide.auxiliary(work.loss(work.new))
            return guide.combine()

        return gradient

    plain: dict[str, Callable[[], object]] = {
        ALONE: lambda: work.loss(work.new).backward(),
        SUM: lambda: summed(work.loss),
        TWO: two_passes,
        KL: lambda: summed(work.divergence),
    }
    plain |= {name: guided(name, refresh=True) for name in FRESH}
    plain |= {f"{name}{REFRESHED}": guided(name, refresh=True) for name in SKIPPING}
    plain |= {name: guided(name, refresh=False) for name in SKIPPING}
    return {name: whole(gradient) for name, gradient in plain.items()}


def measure(name: str, *, device: str, quick: bool, seed: int, seconds: float) -> dict[str, Any]:
    """One model: rounds in which kinds of steps take turns, for `seconds` but at least 20 rounds."""
    work = Decoder(device=device, tiny=quick, seed=seed, checkpointing=name.endswith("checkpointing"))
    steps = actions(work)
    kept = allocated(work.device)
    peaks = {}
    for _ in range(
        3
    ):  # kernels are chosen, optimizers make their state; a refresh comes before steps that need its basis
        peaks = {label: peak_bytes(step, work.device) for label, step in steps.items()}
    times = {label: dict[int, float]() for label in steps}  # by round
    start, done, fewest = time.perf_counter(), 0, 2 if quick else FEWEST
    while done < fewest or time.perf_counter() - start < seconds:
        CORES.choose(work.device)
        labels = [label for label in steps if done % RARELY == 0 or label in OFTEN]
        shift = done % len(labels)
        for label in labels[shift:] + labels[:shift]:
            times[label][done] = seconds_of(steps[label], work.device)
        done += 1
    ratios = {label: {i: x / times[base][i] for i, x in times[label].items()} for label, base in PAIRS.items()}
    for label in SKIPPING:
        refreshed = ratios[f"{label}{REFRESHED}"].items()
        ratios[f"{label}, mean of {EVERY}"] = {i: ((EVERY - 1) * ratios[label][i] + x) / EVERY for i, x in refreshed}
    return {
        "parameters": sum(parameter.numel() for parameter in work.model.parameters()),
        "trained": sum(parameter.numel() for parameter in work.trained),
        "rows": work.rows,
        "tokens": work.length,
        "rounds": done,
        "seconds": {label: statistics.median(found.values()) for label, found in times.items()},
        "ratios": {label: median(list(found.values())) for label, found in ratios.items()},
        "memory": {"kept": kept, "peaks": peaks},
    }


def section(results: Mapping[str, Any]) -> str:
    """What docs/appendix/guard.md says about costs, between two marks."""
    points = results.get("guard", {}).get("points", {})
    if not points:
        return (
            f"{BEGIN}\nCosts on a large model have not been measured yet (`python -m benchmarks --only guard`).\n{END}"
        )
    about = results["guard"]["provenance"]["hardware"]
    parts = []
    for name, point in points.items():
        ratios = {
            "A-GEM, over the sum of both losses": point["ratios"]["a_gem"]["median"],
            "a step that leaves out the protected pass, over a step with new data alone": max(
                point["ratios"][label]["median"] for label in SKIPPING
            ),
            f"the mean of {EVERY} such steps, one of which refreshes, over a step with new data alone": max(
                point["ratios"][f"{label}, mean of {EVERY}"]["median"] for label in SKIPPING
            ),
        }
        said = "\n".join(f"* {what}: {x:.3f}, {'met' if x <= GOAL else 'missed'}" for what, x in ratios.items())
        parts.append(
            f"**{name}**: the model has {point['parameters'] / 1e9:.2f} B parameters, {point['trained'] / 1e6:.1f} M of which "
            f"are trained. A step has {point['rows']} new and {point['rows']} protected sequences of {point['tokens']} tokens, "
            f"in bf16 ({about.get('name', about['device'])}, revision {point['revision']}). Before a step "
            f"{point['memory']['kept'] / 1e9:.2f} GB are in use. The goal is a ratio of at most {GOAL:.2f}:\n\n{said}\n\n"
            f"{table(point)}"
        )
    return "\n\n".join([BEGIN, *parts, END])


def write(results: Mapping[str, Any]) -> None:
    """Put the measured costs into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + section(results) + rest.partition(END)[2], encoding="utf-8")


def table(point: Mapping[str, Any]) -> str:
    """Times, ratios and memory in Markdown."""
    lines = ["| step | ms | over | ratio (95 % interval) | peak memory, GB |", "|---|---|---|---|---|"]
    for label, time_ in point["seconds"].items():
        ratio = point["ratios"].get(label)
        words = "" if ratio is None else f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        peak = point["memory"]["peaks"][label]
        memory = "" if peak is None else f"{peak / 1e9:.2f}"
        lines.append(f"| {label} | {1e3 * time_:.1f} | {PAIRS.get(label, '')} | {words} | {memory} |")
    for label in SKIPPING:
        ratio = point["ratios"][f"{label}, mean of {EVERY}"]
        words = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        lines.append(f"| {label}, mean of {EVERY} steps with one refresh | | {ALONE} | {words} | |")
    return "\n".join(lines)
