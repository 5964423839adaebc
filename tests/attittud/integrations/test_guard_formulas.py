"""Twenty steps of a Trainer with each guard, against formulas that are written here with torch alone, in float64.

Only the batches come from the mixin. The references are those of test_guide_guard.py, on losses of a language model.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


from transformers import Trainer, TrainerCallback

from attittud import guards
from attittud.integrations.guard import PLAIN, GuardMixin
from attittud.integrations.protected import pad
from tests.helpers.trainers import WARNINGS, arguments, llama

pytestmark = [*WARNINGS, pytest.mark.slow]

STEPS, EPS = 20, 1e-3  # a larger eps than usual: where gradients vanish, Adam would magnify rounding errors
RATE, ADAM_RATE = (
    0.1,
    0.003,
)  # low, because transformers rounds its own losses to float32, and the runs would drift apart
LOSSES = {"a_gem": "kl", "ogpsa": "kl", "bloop": "kl", "kl": "kl"}


class Recording(GuardMixin, Trainer):
    """Keeps the batches of every step."""

    def get_batch_samples(self, *args: Any) -> Any:
        batches, items = super().get_batch_samples(*args)
        if batches:
            self.batches.append(copy.deepcopy((batches, [found[0][0] for found in self._window.values()])))
        return batches, items


class Weights(TrainerCallback):
    """Keeps the weights after every step."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
        self.found.append(flat(model))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def rows(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Sequences of three lengths, in which the first tokens do not count."""
    found = torch.randint(2, 20, (count, 8), generator=torch.Generator().manual_seed(seed)).tolist()
    return [{"input_ids": x[: 8 - i % 3], "labels": [-100, -100, *x[2 : 8 - i % 3]]} for i, x in enumerate(found)]


def log_probabilities(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return F.log_softmax(logits[:, :-1].double(), -1)


def token_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each token, 0 where it does not count."""
    wanted = batch["labels"][:, 1:]
    found = log_probabilities(model, batch).gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    return -found * (wanted != -100)


def counted(*batches: dict[str, Tensor]) -> int:
    return sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)


class Reference:
    """One published method; `m`, `v` and `rows` are what it keeps from step to step."""

    def __init__(self, name: str, start: nn.Module) -> None:
        self.name, self.start, self.model = name, start, copy.deepcopy(start)
        self.parameters = list(self.model.parameters())
        self.m: Tensor | None = None
        self.v = torch.zeros_like(flat(start))
        self.sets: list[tuple[Tensor, ...]] = []
        self.step = 0

    def gradient(self, loss: Tensor) -> Tensor:
        found = torch.autograd.grad(loss, self.parameters, retain_graph=True)
        return torch.cat([g.flatten() for g in found])

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split([p.numel() for p in self.parameters])

    def protected(self, batch: dict[str, Tensor]) -> Tensor:
        """A loss for each example: the mean over all tokens of the batch, or the divergence with equal weights."""
        if LOSSES.get(self.name) != "kl":
            return token_losses(self.model, batch).sum(1) * len(batch["labels"]) / counted(batch)
        with torch.no_grad():
            before = log_probabilities(self.start, batch)
        each = (before.exp() * (before - log_probabilities(self.model, batch))).sum(-1)
        wanted = batch["labels"][:, 1:] != -100
        return (each * wanted).sum(1) / wanted.sum(1)

    def train(self, new: list[dict[str, Tensor]], old: list[dict[str, Tensor]]) -> Tensor:
        g = self.gradient(sum(token_losses(self.model, batch).sum() for batch in new) / counted(*new))
        losses = [self.protected(batch) for batch in old]
        update = self.update(g, losses, [self.gradient(x.mean()) for x in losses])
        rate = RATE
        if self.name == "gu":
            self.v = 0.999 * self.v + 0.001 * update.square()
            update, rate = update / self.second(self.step + 1), ADAM_RATE
        self.step += 1
        with torch.no_grad():
            for p, part in zip(self.parameters, self.parts(update), strict=True):
                p.sub_(rate * part.view_as(p))
        return flat(self.model)

    def second(self, step: int) -> Tensor:
        return (self.v / (1 - 0.999**step)).sqrt() + EPS

    def update(self, g: Tensor, losses: list[Tensor], sets: list[Tensor]) -> Tensor:
        if self.name == "none":
            return g
        if self.name == "ogpsa":
            return self.ogpsa(g, sets)
        r = torch.stack(sets).mean(0)
        if self.name in ("replay", "kl"):
            return g + 0.7 * r
        if self.name in ("a_gem", "pcgrad"):
            return (off(g, r) if g @ r < 0 else g) + r * (self.name == "pcgrad")
        if self.name == "orthograd":
            _, sizes, v = torch.linalg.svd(torch.stack([self.gradient(x) for x in losses[0]]), full_matrices=False)
            v = v[sizes > 1e-6 * sizes[0]]  # a batch may have an example twice, at the end of an epoch
            return g - v.T @ (v @ g) + r
        if self.name == "gru":
            self.m = 0.8 * r + 0.2 * (torch.zeros_like(r) if self.m is None else self.m)
            return off(g, self.m) if g @ self.m < 0 else g
        if self.name == "bloop":
            old = r if self.m is None else self.m
            self.m = old + 0.1 * (r - old)
            return off(g, self.m) + r
        p = self.second(self.step) if self.step else torch.ones_like(r)
        return g - (g @ (r / p)) / (r @ (r / p)) * r

    def ogpsa(self, g: Tensor, sets: list[Tensor]) -> Tensor:
        if sets and float(sets[0].norm()) > 1e-12:  # the divergence has no gradient at the start
            self.sets = [self.parts(x) for x in sets]
        found = []
        for number, part in enumerate(self.parts(g)):
            basis: list[Tensor] = []
            for x in self.sets:
                basis.append(without(x[number] / x[number].norm(), basis))
                basis[-1] /= basis[-1].norm()
            found.append(without(part, basis))
        return torch.cat(found)


def without(x: Tensor, basis: list[Tensor]) -> Tensor:
    return x - sum(((x @ u) * u for u in basis), torch.zeros_like(x))


def off(g: Tensor, r: Tensor) -> Tensor:
    return g if float(r.norm()) < 1e-12 else g - (g @ r) / (r @ r) * r


@pytest.mark.parametrize("name", [*PLAIN, *guards()])
def test_twenty_steps_follow_the_formula(tmp_path: Path, name: str) -> None:
    start = llama().double()
    args = {"optim": "sgd", "learning_rate": RATE}
    args |= {"optim": "adamw_torch", "learning_rate": ADAM_RATE} if name == "gu" else {}
    args |= {"adam_beta1": 0.0, "adam_epsilon": EPS, "gradient_accumulation_steps": 3, "max_grad_norm": 0.0}
    old = {"a": rows(10, 2), "b": rows(7, 3)} if name in ("ogpsa", "a_gem") else rows(10, 2)
    more = {"guide": {"refresh_every": 6}} if name == "ogpsa" else {}
    more |= {"protect_weight": 0.7} if name in PLAIN and name != "none" else {}
    more |= {"protect_loss": LOSSES.get(name, "nll")} if name != "none" else {}
    trainer = Recording(
        copy.deepcopy(start),
        arguments(tmp_path, **args | {"max_steps": STEPS, "per_device_train_batch_size": 2, "logging_steps": 50}),
        train_dataset=rows(40, 1),
        data_collator=pad,
        protect_dataset=old,
        protect_batch_size=4,
        guard=name,
        shares=(),
        **more,
    )
    trainer.batches, weights = [], Weights()
    trainer.add_callback(weights)
    trainer.train()
    reference = Reference(name, start)
    wanted = [reference.train(*batches) for batches in trainer.batches]
    assert len(wanted) == len(weights.found) == STEPS and (wanted[-1] - flat(start)).abs().max() > 0.03
    assert max(float((x - y).abs().max()) for x, y in zip(weights.found, wanted, strict=True)) < 1e-6
    if name == "ogpsa":  # the first basis has no direction, so the second step computes it again
        assert trainer.auxiliary.drawn == {"a": 5, "b": 5}
