"""One run: 150 steps of a method, with losses on all measured sets at six checkpoints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from attittud import Guide, averages, weights_of
from attittud.losses import per_sequence, per_sequence_kl

from .data import MEMORISED, REPLIES, Row, Split, batch, load_sets, split
from .methods import METHODS, PROTECTED, Method

RATES = (1e-5, 3e-5, 1e-4)
CHECKPOINTS = (10, 25, 50, 75, 110, 150)
SHARES = (0.25, 0.5, 0.75)
NEW, WARM_UP, CLIP, NPO = 16, 10, 1.0, 0.1
LORA_RANK, LORA_RATE = 16, 10.0
DRIFT, UNDRIFTED = "/drift", ("new", "pairs")
"""KL(start ‖ now) on what is retained: it is 0 at the start, and cannot fall below."""
KINDS = ("new", "old", "judges", "replaced")
MEMORISE_STEPS, MEMORISE_RATE = 400, 1e-4
UNTIMED = 3  # steps in which buffers are made


@dataclass(frozen=True)
class Run:
    """What a line of results is about."""

    task: str
    method: str
    rate: float
    m: int
    seed: int
    lora: bool = False

    @property
    def key(self) -> str:
        return "/".join(map(str, asdict(self).values()))


@dataclass(frozen=True)
class Sizes:
    """Steps and batches; smaller for a check that all of it runs."""

    checkpoints: tuple[int, ...] = CHECKPOINTS
    new: int = NEW
    evaluated: int = 16
    width: int = 64
    """Batches are padded to a multiple of it, so that there are few shapes."""
    memorise: int = MEMORISE_STEPS
    reply: int = 128


QUICK = Sizes(checkpoints=(1, 2, 3, 4, 5, 6), new=4, width=1, memorise=3, reply=4)


class Bench:
    """A process that trains one run after the other: model and data are loaded once."""

    def __init__(self, files: Path, folder: Path, device: str, sizes: Sizes, *, compiled: bool = False) -> None:
        from transformers import AutoModelForCausalLM

        self.files, self.folder, self.device, self.sizes = files, folder, torch.device(device), sizes
        self.sets, self.end = load_sets(files / "data.npz")

        def load() -> Any:
            model = AutoModelForCausalLM.from_pretrained(files / "model", dtype=torch.float32)
            return model.to(self.device).train()

        # Without dropout; the second one stays what it is, and says what the first one was.
        self.model, self.start = load(), load().requires_grad_(False)
        self.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        if self.device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(
                False
            )  # it plans anew for every shape, which took longer than the step
        if compiled:
            torch._dynamo.config.recompile_limit = 64  # all layers share one code; LoRA and no_grad are other variants
            for model in (self.model, self.start):
                for layer in model.model.layers:
                    layer.compile(dynamic=True)

    @contextmanager
    def half(self) -> Iterator[None]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            yield

    def logits(self, model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        with self.half():
            found: Tensor = model(input_ids=inputs["input_ids"], use_cache=False).logits
        return found

    def reset(self, task: str) -> None:
        """Both models have the weights that the task starts from."""
        weights = self.weights if task != "b" else load_file(self.folder / MEMORISED, device=str(self.device))
        for model in (self.model, self.start):
            model.load_state_dict(weights, strict=False)  # tied weights are stored once
            model.tie_weights()

    def batch(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return batch(rows, self.device, self.sizes.width)

    @torch.no_grad()
    def losses(self, sets: Mapping[str, Sequence[Row]]) -> dict[str, float]:
        """The mean over all tokens that count, by set; and how far the predictions are from those of the start (`DRIFT`)."""
        found = {}
        for name, rows in sets.items():
            total = torch.zeros(3, dtype=torch.float64, device=self.device)
            ordered = sorted(rows, key=lambda row: len(row["input_ids"]))
            for start in range(0, len(ordered), self.sizes.evaluated):
                inputs = self.batch(ordered[start : start + self.sizes.evaluated])
                logits, labels = self.logits(self.trained, inputs), inputs["labels"]
                counted = (labels[:, 1:] != -100).sum(dim=1).double()
                sums = per_sequence(logits, labels, reduction="sum").double().sum()
                drift = torch.zeros_like(sums)
                if name not in UNDRIFTED:
                    drift = (per_sequence_kl(logits, self.logits(self.start, inputs), labels) * counted).sum()
                total += torch.stack([sums, drift, counted.sum()])
            found[name] = float(total[0] / total[2])
            if name not in UNDRIFTED:
                found[name + DRIFT] = float(total[1] / total[2])
        return found

    def run(self, run: Run) -> dict[str, Any]:
        """Train and measure; a line of results."""
        torch.manual_seed(run.seed)
        began = time.perf_counter()
        self.reset(run.task)
        with self._adapted(run) as trained:
            self.trained = trained
            method = METHODS[run.method]
            data = split(self.folder, self.sets, run.task, run.m, run.seed, judged=method.judged)
            before = weights_of(trained) if run.method == "plain" and not run.lora else {}
            first = self.losses(data.measured)
            steps, found = Steps(self, run, method, data), []
            for number in range(1, self.sizes.checkpoints[-1] + 1):
                steps.step()
                if number in self.sizes.checkpoints:
                    found.append({"step": number, "seconds": steps.seconds, "losses": self.losses(data.measured)})
            line = {"key": run.key, **asdict(run), "start": first, "checkpoints": found, "step_seconds": steps.median()}
            if before:
                curve = averages(trained, before, lambda: self.losses(data.measured), SHARES)
                line["averages"] = {str(share): losses for share, losses in curve.items()}
        return line | {"whole_seconds": time.perf_counter() - began}

    def timed(self, run: Run, steps: int) -> float:
        """The mean seconds of so many steps, refreshes among them, without measuring anything else."""
        self.reset(run.task)
        method, self.trained = METHODS[run.method], self.model
        made = Steps(self, run, method, split(self.folder, self.sets, run.task, run.m, run.seed, judged=method.judged))
        for _ in range(UNTIMED + steps):
            made.step()
        return statistics.fmean(made.times[UNTIMED:])

    @contextmanager
    def _adapted(self, run: Run) -> Iterator[Any]:
        if not run.lora:
            yield self.model
            return
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        made = get_peft_model(self.model, config).train()
        try:
            yield made
        finally:
            self.model = made.unload()
            self.model.requires_grad_(True)

    # ------------------------------------------------------------------------------------------------ stage 0

    @torch.no_grad()
    def replies(self) -> list[Row]:
        """What the start model writes to the instructions, by the likeliest token, cut at its end-of-text sign."""
        self.reset("a")
        self.model.eval()
        rows, found = self.sets["prompts"], list[Row]()
        for start in range(0, len(rows), 64):
            prompts = [list(row["input_ids"]) for row in rows[start : start + 64]]
            longest = max(map(len, prompts))
            ids = torch.tensor([[self.end] * (longest - len(p)) + p for p in prompts], device=self.device)
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
            with self.half():
                written = self.model.generate(
                    ids, attention_mask=mask, do_sample=False, max_new_tokens=self.sizes.reply, pad_token_id=self.end
                )
            for prompt, whole in zip(prompts, written[:, longest:].tolist(), strict=True):
                said = whole[: whole.index(self.end) + 1] if self.end in whole else whole
                found.append({"input_ids": prompt + said, "labels": [-100] * len(prompt) + said})
        self.model.train()
        return found

    def memorise(self) -> dict[str, float]:
        """Train on all fictitious pairs of TOFU, and keep the weights."""
        self.reset("a")
        self.trained = self.model
        rows = [*self.sets["tofu_forget"], *self.sets["tofu_retain"]]
        data = Split(rows, [], [], {"pairs": rows[: 4 * self.sizes.evaluated]})
        before = self.losses(data.measured)["pairs"]
        steps = Steps(self, Run("a", "plain", MEMORISE_RATE, 0, 0), METHODS["plain"], data)
        for _ in range(self.sizes.memorise):
            steps.step()
        save_file(
            {name: x.contiguous().clone() for name, x in self.model.state_dict().items()}, self.folder / MEMORISED
        )
        return {"before": before, "after": self.losses(data.measured)["pairs"]}


class Steps:
    """The training of one run, step by step."""

    def __init__(self, bench: Bench, run: Run, method: Method, data: Split) -> None:
        self.bench, self.run, self.method, self.data = bench, run, method, data
        parameters = [parameter for parameter in bench.trained.parameters() if parameter.requires_grad]
        rate = run.rate * (LORA_RATE if run.lora else 1.0)
        self.optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0, fused=bench.device.type == "cuda")
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
        own = {"optimizer": self.optimizer} if method.guide.get("metric") == "adam" else {}
        self.guide = Guide(bench.trained, **method.guide, **own) if method.guide else None
        self.parameters, self.seconds, self.times = parameters, 0.0, list[float]()
        # One for each kind of data, so that all methods of a seed see the new data in the same order.
        self._random = {name: np.random.default_rng([run.seed, number]) for number, name in enumerate(KINDS)}
        self._orders: dict[str, list[int]] = {}

    def median(self) -> float:
        return statistics.median(self.times)

    def step(self) -> None:
        self._wait()
        began = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        rows = self._draw("new", self.data.new, self.bench.sizes.new)
        if self.method.replay:
            replaced = self._random["replaced"].random(len(rows)) < self.method.replay
            old = self._draw("old", self.data.protected, len(rows))
            rows = [b if instead else a for a, b, instead in zip(rows, old, replaced, strict=True)]
        new = self.bench.batch(rows)
        if self.guide is None:
            self._new_loss(new).backward()
            if self.method.added in ("nll", "kl"):
                self._protected_loss(self.method.added).mean().backward()
        else:
            self._guided(new)
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.schedule.step()
        self._wait()
        self.times.append(time.perf_counter() - began)
        self.seconds += self.times[-1]

    def _guided(self, new: Mapping[str, Tensor]) -> None:
        guide = self.guide
        assert guide is not None
        if guide.primary_due:
            if self.method.single:
                # The engine `hooks` has to see the forward pass of each layer, which a compiled one hides.
                with torch.compiler.set_stance("force_eager"):
                    guide.primary(lambda: self._protected_loss(self.method.loss))
            else:
                guide.primary(self._protected_loss(self.method.loss).mean()[None])
        else:
            guide.primary(None)
        if guide.judge_due:
            judges = self._draw("judges", self.data.judges, PROTECTED)
            guide.judge(lambda: self._nll(self.bench.batch(judges)))
        guide.auxiliary(self._new_loss(new))
        guide.combine()

    def _new_loss(self, inputs: Mapping[str, Tensor]) -> Tensor:
        labels = inputs["labels"]
        logits = self.bench.logits(self.bench.trained, inputs)
        sums = per_sequence(logits, labels, reduction="sum")
        if self.run.task == "b":  # negative preference optimisation: less likely than at the start
            with torch.no_grad():
                start = per_sequence(self.bench.logits(self.bench.start, inputs), labels, reduction="sum")
            return 2 / NPO * F.softplus(NPO * (start - sums)).mean()
        loss = sums.sum() / (labels[:, 1:] != -100).sum()
        if self.method.added == "kl_new":
            with torch.no_grad():
                start = self.bench.logits(self.bench.start, inputs)
            loss = loss + per_sequence_kl(logits, start, labels).mean()
        return loss

    def _protected_loss(self, kind: str) -> Tensor:
        """Losses of a batch of protected sequences, one by one."""
        inputs = self.bench.batch(self._draw("old", self.data.protected, PROTECTED))
        if kind == "nll":
            return self._nll(inputs)
        with torch.no_grad():
            start = self.bench.logits(self.bench.start, inputs)
        return per_sequence_kl(self.bench.logits(self.bench.trained, inputs), start, inputs["labels"])

    def _nll(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return per_sequence(self.bench.logits(self.bench.trained, inputs), inputs["labels"])

    def _draw(self, name: str, rows: Sequence[Row], count: int) -> list[Row]:
        """The next rows of a random order, then of another one."""
        order = self._orders.setdefault(name, [])
        while len(order) < count:
            order += self._random[name].permutation(len(rows)).tolist()
        drawn, self._orders[name] = order[:count], order[count:]
        return [rows[number] for number in drawn]

    def _wait(self) -> None:
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize(self.bench.device)


__all__ = ["CHECKPOINTS", "MEMORISED", "QUICK", "RATES", "REPLIES", "SHARES", "Bench", "Run", "Sizes"]
