"""Hash training steps, so that a refactoring can show that it changes no bit.

    python -m benchmarks.step_hashes --write hashes.json      # before
    python -m benchmarks.step_hashes --compare hashes.json    # after

Each configuration trains a small model for five steps. Its hash covers parameters, buffers,
gradients and the report of every step; one with two workers has half a hash from each. Only public
names of the library are used, so that the script runs on both sides of a refactoring. Another
processor or another version of torch may round differently: compare on one machine.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import logging.handlers
import math
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from fnmatch import fnmatch
from functools import partial, partialmethod
from itertools import product
from pathlib import Path
from typing import Any

# Some virtual machines announce AMX and then kill the process that uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # otherwise cuBLAS may add in another order every time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException
from torch.utils.checkpoint import checkpoint

import attittud.checkpoint
from attittud import Eta, Guide, Report, decompose, preset, presets
from benchmarks.results import revision

# What a report says today. Names that a later version adds do not change a hash.
REPORTED = {
    *("neutral", "helpful", "harmful", "agreement", "captured_auxiliary", "cosine"),
    *("captured_primary", "effective_rank", "refreshed", "skipped_refreshes"),
    *(
        "weight_neutral",
        "weight_helpful",
        "weight_harmful",
        "score_neutral",
        "score_helpful",
        "score_harmful",
    ),
    *("score_auxiliary", "score_primary", "error_auxiliary", "skipped_hearings"),
}
RENAMED = {"skipped_scores": "skipped_hearings"}  # a new name does not change a hash either
ETA = Eta(neutral=0.9, helpful=1.1, harmful=-0.5)
SIZES = {
    "primary": (14, 9, 12, 6, 10),
    "auxiliary": (8, 11, 5, 13, 9),
}  # the sizes of batches in steps 0 to 4
# the step before which something happens: in mid-interval, since the basis is new in steps 0, 2 and
# 4
EVENT = 3

# ------------------------------------------------------------------------------------------- models


class Function(nn.Module):
    """A module from a function of itself and its input."""

    def __init__(
        self, forward: Callable[[Any, Any], Tensor], **parts: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, x: Any) -> Tensor:
        return self.function(self, x)


class TwoHeads(nn.Module):
    """A body with six features, a head for the primary task and one for the auxiliary task."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.heads = (
            body,
            nn.ModuleDict({"primary": nn.Linear(6, 3), "auxiliary": nn.Linear(6, 4)}),
        )

    def forward(self, x: Tensor, head: str) -> Any:
        hidden = self.body(x)
        if head == "both":
            return [layer(hidden) for layer in self.heads.values()]
        return self.heads[head](hidden)


def perceptron(*between: nn.Module, width: int = 6) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, width), *between, nn.Tanh(), nn.Linear(width, width), nn.Tanh()
    )


def convolutions(
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d, **options: Any
) -> nn.Sequential:
    first = [nn.Conv2d(2, 4, 3, padding=1), norm(4), nn.ReLU(inplace=True)]
    second = [nn.Conv2d(4, 4, 3, **({"padding": 1} | options)), norm(4), nn.ReLU()]
    return nn.Sequential(*first, *second, Function(lambda _, x: x.mean((2, 3))), nn.Linear(4, 6))


def sequences(layer: nn.Module, last: Callable[[Any], Tensor]) -> nn.Sequential:
    places = Function(lambda self, x: x + self.places, places=nn.Parameter(0.3 * torch.randn(4, 6)))
    return nn.Sequential(nn.Embedding(4, 6), places, layer, Function(lambda _, x: last(x)))


def checkpointed() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return checkpoint(
            lambda h: self.inner(self.dropout(h)).tanh(), self.enter(x).tanh(), use_reentrant=False
        )

    return Function(forward, enter=nn.Linear(5, 6), inner=nn.Linear(6, 6), dropout=nn.Dropout(0.2))


def raw() -> nn.Module:
    """Parameters without a layer: one transposed, a scalar, a token, one without elements, in
    several products.
    """
    values = [torch.randn(5, 4).t(), torch.randn(4), torch.tensor(0.7), torch.randn(4, 4)]
    values += [torch.randn(1, 1, 3), torch.randn(2, 4, 3), torch.randn(3, 2), torch.ones(0, 6)]

    def forward(self: Any, x: Tensor) -> Tensor:
        h = torch.addmm(self.p1, self.p2 * F.linear(x, self.p0), self.p3)
        h = torch.cat([self.p4.expand(len(x), -1, -1), torch.einsum("bi,hio->bho", h, self.p5)], 1)
        return torch.tanh((h @ self.p6).flatten(1) + self.p7.sum(0))

    return Function(forward, **{f"p{i}": nn.Parameter(value) for i, value in enumerate(values)})


BODIES: dict[str, Callable[[], nn.Module]] = {
    "mlp": perceptron,
    # Long enough for arithmetic in chunks, and for "auto" to choose "hooks".
    "wide": lambda: nn.Sequential(perceptron(width=360), nn.Linear(360, 6)),
    "norms": lambda: perceptron(nn.LayerNorm(6), nn.GELU(), nn.RMSNorm(6)),
    "dropout": lambda: perceptron(nn.Dropout(0.3), Function(lambda _, x: F.dropout(x, 0.2))),
    "noise": lambda: perceptron(Function(lambda _, x: x + 0.1 * torch.randn_like(x))),
    "cnn": convolutions,
    "cnn_group_norm": lambda: convolutions(
        lambda n: nn.GroupNorm(2, n), groups=2, stride=2, bias=False
    ),
    "cnn_instance_norm": lambda: convolutions(
        partial(nn.InstanceNorm2d, affine=True), padding="same", dilation=2
    ),
    "channels_last": lambda: convolutions(lambda _: nn.Identity()).to(
        memory_format=torch.channels_last
    ),
    "channels_last_batch_norm": lambda: convolutions().to(memory_format=torch.channels_last),
    "embedding": lambda: nn.Sequential(
        nn.Embedding(1100, 3, padding_idx=1), nn.Flatten(), nn.Linear(12, 6)
    ),
    "tied": lambda: nn.Sequential(
        nn.Embedding(4, 6), Function(lambda _, x: x.mean(1)), nn.Linear(6, 6), nn.Tanh()
    ),
    "transformer": lambda: sequences(
        nn.TransformerEncoderLayer(6, 2, 12, 0.1, batch_first=True), lambda x: x.mean(1)
    ),
    "lstm": lambda: sequences(nn.LSTM(6, 6, batch_first=True), lambda x: x[0][:, -1]),
    "checkpointed": checkpointed,
    "reused": lambda: Function(
        lambda self, x: self.b(self.b(self.a(x)).tanh()), a=nn.Linear(5, 6), b=nn.Linear(6, 6)
    ),
    "raw": raw,
    "frozen": perceptron,
    "unused": perceptron,
}
CHANGES: dict[str, Callable[[Any], object]] = {
    "tied": lambda model: setattr(model.heads["auxiliary"], "weight", model.body[0].weight),
    "frozen": lambda model: model.body[0].weight.requires_grad_(False),
    "unused": lambda model: model.register_module("extra", nn.Linear(3, 3)),
}


def inputs(model: str) -> Tensor:
    if model in ("embedding", "tied", "transformer", "lstm"):
        return torch.randint(4, (24, 4))
    x = torch.randn(24, 2, 6, 6) if model.startswith(("cnn", "channels")) else torch.randn(24, 5)
    return x.to(memory_format=torch.channels_last) if model.startswith("channels") else x


# ---------------------------------------------------------------------------------- a configuration


@dataclass(frozen=True)
class Case:
    """One configuration. Its name says all that is not as usual."""

    device: str = "cpu"
    kind: str = (
        "one"  # "group", "ddp", "fsdp": two workers; "aot_eager", "inductor": a compiled model
    )
    engine: str = "loop"
    basis: str = "sketch"
    dtype: str = "float32"
    model: str = "mlp"
    form: str = "plain"  # how the losses are given, see FORMS
    event: str = ""  # what happens in mid-interval, see EVENTS
    autocast: str = ""  # "forward16": around each forward pass, "step16": around the whole step
    scale: float = 1.0  # factor of all losses; NaN breaks one example in step 2
    shares: tuple[int, int] = (2, 1)  # how two workers divide the primary examples
    guide: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the guide

    @property
    def name(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)[:-1]}
        always = ("engine", "basis", "dtype", "model")
        shown = {
            name: value
            for name, value in values.items()
            if name in always or value != getattr(Case, name)
        }
        words = [
            value if isinstance(value, str) else f"{name}={value}" for name, value in shown.items()
        ]
        words += [f"{name}={value}".replace("torch.", "") for name, value in self.guide.items()]
        return "/".join(words).replace(" ", "")

    @property
    def workers(self) -> int:
        return 2 if self.kind in ("group", "ddp", "fsdp") else 1

    def settings(self) -> dict[str, Any]:
        """All arguments of the guide. Judges and named tasks need their own eta."""
        arguments = {"eta": ETA, "primary_weight": 0.3, "rank": 3, "refresh_every": 2, "seed": 5}
        if "judged" in self.form:
            arguments |= {"eta": "auto", "judge_every": 1}
        if "named" in self.form:
            arguments["eta"] = {
                "near": arguments["eta"],
                "far": Eta(neutral=0.2, helpful=1, harmful=0),
            }
            arguments["auxiliary_weight"] = {"near": 1.0, "far": 0.3}
        arguments |= {"engine": self.engine, "basis": self.basis} | self.guide
        arguments |= preset(arguments.pop("preset")) if "preset" in arguments else {}
        prefix = arguments.pop("parameters", "")
        return arguments | (
            {"parameters": lambda name, _: name.startswith(prefix)} if prefix else {}
        )


# -------------------------------------------------------------------------------------------- a run


def wrapped(model: Any, kind: str) -> nn.Module:
    if kind in ("aot_eager", "inductor"):
        torch.compiler.reset()
        return torch.compile(model, backend=kind)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.body, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


class Run:
    """A model in training with a guide. Of 24 examples the last 16 may be for the basis and the
    last 8 for judges.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.index, self.hash = case, 0, hashlib.sha256()
        torch.manual_seed(0)
        self.inner = TwoHeads(BODIES[case.model]())
        CHANGES.get(case.model, id)(self.inner)
        dtype = getattr(torch, case.dtype)
        self.inner.to(case.device, dtype)
        self.data = {}
        for head in SIZES:
            x, y = inputs(case.model), torch.randint(3, (24,))
            self.data[head] = (
                x.to(case.device, dtype if x.is_floating_point() else x.dtype),
                y.to(case.device),
            )
        self.model = wrapped(self.inner, case.kind)
        self.guide = self.make_guide()

    def make_guide(self) -> Guide:
        group = {"process_group": dist.group.WORLD} if self.case.kind == "group" else {}
        return Guide(self.model, **self.case.settings(), **group)

    def region(self, where: str) -> AbstractContextManager[Any]:
        """Autocast where the case wants it; without its cache, which CUDA graphs do not allow."""
        is_here = self.case.autocast == where
        if is_here:
            return torch.autocast(self.case.device, torch.bfloat16, cache_enabled=False)
        return nullcontext()

    def batch(self, head: str) -> tuple[int, int]:
        """Which examples the step takes. Compiled models and captured graphs want batches of one
        size.
        """
        fixed = self.case.kind in ("aot_eager", "inductor") or self.case.form == "captured"
        return (0, 12) if fixed else (self.index, self.index + SIZES[head][self.index])

    def rows(self, head: str, start: int, stop: int) -> slice:
        """This worker's part of some examples."""
        if self.case.workers == 1:
            return slice(start, stop)
        first, second = self.case.shares if head == "primary" else (2, 1)
        cut = start + (stop - start) * first // (first + second)
        return slice(start, cut) if dist.get_rank() == 0 else slice(cut, stop)

    @property
    def broken(self) -> bool:
        return math.isnan(self.case.scale) and self.index == 2

    def losses(self, head: str, examples: tuple[int, int] | None = None) -> Any:
        """Return this worker's part of the losses of some examples, `(start, stop)`, or of the
        batch.

        A worker without examples returns None or, under FSDP2, where all workers take part in every
        forward pass, an empty vector.
        """
        start, stop = examples or self.batch(head)
        own_rows = self.rows(head, start, stop)
        count = own_rows.stop - own_rows.start
        if count == 0 and self.case.kind != "fsdp":
            return None
        forward_rows = own_rows if count > 0 else slice(0, 2)
        x, y = (part[forward_rows] for part in self.data[head])
        with self.region("forward16"):
            losses = F.cross_entropy(self.model(x, head), y, reduction="none")[:count]
        if self.broken and head == "primary" and own_rows.start == self.index:
            return torch.cat([losses[:1] * torch.nan, losses[1:]])
        return losses if math.isnan(self.case.scale) else losses * self.case.scale

    primary = partialmethod(losses, "primary")
    vector = partialmethod(losses, "auxiliary")
    basis_losses = partialmethod(losses, "primary", (8, 24))
    # Judges that agree with the auxiliary task give it a weight within a few steps.
    judge = partialmethod(losses, "auxiliary", (16, 24))

    def auxiliary(self) -> Tensor:
        return self.vector().mean()

    def half(self, head: str, second: bool) -> Tensor:
        start, stop = self.batch(head)
        middle = (start + stop) // 2
        return self.losses(head, (middle, stop) if second else (start, middle)) / 2

    def tasks(self) -> dict[str, Tensor]:
        """Two named losses that reach different heads; the second one may come in late."""
        late = self.case.form == "named_late" and self.index < 2
        return {"near": self.auxiliary()} | (
            {} if late else {"far": self.losses("primary", (2, 7))}
        )

    def both(self) -> tuple[Tensor, Tensor]:
        """Both losses from one forward pass."""
        x, y = (part[self.rows("primary", *self.batch("primary"))] for part in self.data["primary"])
        first, second = self.model(x, "both")
        return F.cross_entropy(first, y, reduction="none"), F.cross_entropy(second, y)

    def step(self) -> None:
        if self.index == EVENT and self.case.event in EVENTS:
            EVENTS[self.case.event](self)
        self.inner.zero_grad()
        with self.region("step16"):
            report = FORMS[self.case.form](self)
        self.take(report, self.gradients())
        if not self.broken:
            self.descend()
        self.index += 1

    def descend(self) -> None:
        """Take a step of SGD, which keeps no state; the learning rate undoes the scale of the
        losses.
        """
        scale = self.case.scale if self.case.scale > 0 else 1.0
        torch.optim.SGD(self.inner.parameters(), lr=0.1 / scale).step()

    def gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.inner.parameters()]

    def take(self, report: Report, gradients: Sequence[Tensor | None]) -> None:
        """Add to the hash what a step has left behind."""
        for name, value in sorted(self.inner.state_dict().items()):
            self.hash.update(name.encode() + bits(value))
        for gradient in gradients:
            self.hash.update(bits(gradient))
        self.hash.update(f"{self.guide.refresh_due} {self.guide.judge_due}".encode())
        reported = [(name.rpartition("/"), number) for name, number in report.to_dict().items()]
        named = {
            f"{task}{slash}{RENAMED.get(name, name)}": number
            for (task, slash, name), number in reported
        }
        for name, number in sorted(named.items()):
            if name.split("/")[-1] in REPORTED:
                self.hash.update(f"{name} {float(number).hex()}".encode())


def bits(x: Any) -> bytes:
    """The numbers of a tensor, or of this worker's shard. All NaNs count as the same: their spare
    bits are not a result.
    """
    if x is None:
        return b"none"
    x = (x.to_local() if hasattr(x, "to_local") else x).detach().cpu()
    x = torch.where(x.isnan(), torch.nan, x) if x.is_floating_point() else x
    return str(x.dtype).encode() + x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# --------------------------------------------------------------------------------- forms and events


def backward(words: str, run: Run) -> Report:
    """Call the one verb: with losses or a callable, with a form of auxiliary losses, and with
    more.
    """
    primary, auxiliary, *more = words.split()
    retired = run.case.event == "retire" and run.index >= EVENT
    more_losses = {name: getattr(run, name) for name in more if name != "judge" or not retired}
    losses = run.primary if primary == "callable" else run.primary()
    return run.guide.backward(losses, getattr(run, auxiliary)(), **more_losses)


def verbs(order: str, run: Run) -> Report:
    """Call the verbs in an order. Capital letters take in the whole batch, small ones half of
    it.
    """
    guide = run.guide
    calls: dict[str, Callable[[], None]] = {
        "P": lambda: guide.primary(run.primary()),
        "C": lambda: guide.primary(run.primary),
        "B": lambda: guide.primary(run.primary(), basis_losses=run.basis_losses),
        "p": lambda: guide.primary(run.half("primary", second=False)),
        "q": lambda: guide.primary(run.half("primary", second=True)),
        "b": lambda: guide.primary(
            run.half("primary", second=False), basis_losses=run.basis_losses
        ),
        "A": lambda: guide.auxiliary(run.auxiliary()),
        "T": lambda: guide.auxiliary(run.tasks()),
        "a": lambda: guide.auxiliary(run.half("auxiliary", second=False)),
        "c": lambda: guide.auxiliary(run.half("auxiliary", second=True)),
        "n": lambda: guide.auxiliary({"near": run.half("auxiliary", second=False)}),
        "f": lambda: guide.auxiliary({"far": run.half("auxiliary", second=True)}),
        "J": lambda: guide.judge(run.judge),
    }
    for verb in order:
        calls[verb]()
    return guide.combine()


def one_forward_in_verbs(run: Run) -> Report:
    losses, loss = run.both()
    run.guide.primary(losses, retain_graph=True)
    run.guide.auxiliary(loss)
    return run.guide.combine()


def asked_refresh(run: Run) -> Report:
    return run.guide.backward(run.primary(), run.auxiliary(), refresh=run.index in (0, 3, 4))


BACKWARD = (
    {"plain": "losses auxiliary", "vector": "losses vector", "callable": "callable auxiliary"}
    | {
        "basis_losses": "losses auxiliary basis_losses",
        "callable_basis_losses": "callable auxiliary basis_losses",
    }
    | {"named": "losses tasks", "named_late": "losses tasks", "named_callable": "callable tasks"}
    | {"judged": "losses auxiliary judge", "judged_callable": "callable auxiliary judge"}
    | {"judged_named": "losses tasks judge"}
)
VERBS = (
    {
        "three_verbs": "PA",
        "callable_in_verbs": "CA",
        "basis_losses_in_verbs": "BA",
        "auxiliary_first": "AP",
    }
    | {
        "accumulated": "pqac",
        "auxiliary_first_accumulated": "acpq",
        "accumulated_basis_losses": "baqc",
    }
    | {"named_in_verbs": "PT", "named_accumulated": "pqnfnf", "named_growing_primary": "bnfqnf"}
    | {"judged_in_verbs": "PJA", "judged_named_in_verbs": "PJT", "judged_accumulated": "Jpqac"}
)
FORMS: dict[str, Callable[[Run], Report]] = {
    **{name: partial(backward, words) for name, words in BACKWARD.items()},
    **{name: partial(verbs, order) for name, order in VERBS.items()},
    # A step with a refresh wants all primary losses first.
    "interleaved": lambda run: verbs("pqac" if run.guide.refresh_due else "paqc", run),
    "one_forward": lambda run: run.guide.backward(*run.both()),
    "one_forward_in_verbs": one_forward_in_verbs,
    "asked_refresh": asked_refresh,
    # A power of two of primary examples, which takes one backward pass in a refresh by "hooks".
    "eight_callable": lambda run: run.guide.backward(
        lambda: run.losses("primary", (run.index, run.index + 8)), run.auxiliary()
    ),
    "twice": lambda run: [asked_refresh(run) for _ in range(2)][1],  # their gradients add up
}


def resume(run: Run, how: str) -> None:
    """Go on with a new guide, and in one process with a copy of the model."""
    if run.case.workers == 1:
        run.model = run.inner = copy.deepcopy(run.inner)
    old, run.guide = run.guide, run.make_guide()
    if how != "checkpoint":
        run.guide.load_state_dict(copy.deepcopy(old.state_dict(include_basis=how == "state")))
        return
    with tempfile.TemporaryDirectory() as folder:
        folders = [folder]
        if run.case.workers > 1:
            dist.broadcast_object_list(folders)  # the first worker's is used by all
        attittud.checkpoint.save(old, folders[0])
        attittud.checkpoint.load(run.guide, folders[0])
        if run.case.workers > 1:
            dist.barrier()  # before the folder goes


EVENTS: dict[str, Callable[[Any], object]] = {
    "resume": partial(resume, how="state"),
    "resume_without_basis": partial(resume, how="no basis"),
    "resume_from_checkpoint": partial(resume, how="checkpoint"),
    "freeze": lambda run: run.inner.body[0].weight.requires_grad_(False),
    "assign": lambda run: run.inner.load_state_dict(
        copy.deepcopy(run.inner.state_dict()), assign=True
    ),
}


def train(case: Case) -> str:
    run = Run(case)
    for _ in range(5):
        run.step()
    return run.hash.hexdigest()[:16]


def replay(case: Case) -> str:
    """Capture a plain step and a refresh as CUDA graphs and replay them on new data."""
    run = Run(case)
    judge = {"judge": run.judge} if "eta" in case.guide else {}

    def step(refresh: bool | None) -> Report:
        run.inner.zero_grad()
        # "hooks" has to see the forward pass.
        primary = run.primary if case.engine == "hooks" else run.primary()
        report = run.guide.backward(primary, run.auxiliary(), refresh=refresh, **judge)
        run.descend()
        return report

    captured, stream = {}, torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with run.region("step16"):
        with torch.cuda.stream(stream):
            for refresh in (True, False, True, False):
                step(refresh)
        torch.cuda.current_stream().wait_stream(stream)
        for refresh in (False, True):
            graph = torch.cuda.CUDAGraph()
            run.inner.zero_grad()
            with torch.cuda.graph(graph):
                report = step(refresh)
            captured[refresh] = (
                graph,
                report,
                run.gradients(),
            )  # each graph writes into its own gradients
        for refresh in (False, True, False, True, True, False):
            for x in (part for pair in run.data.values() for part in pair):
                x.copy_(x.roll(1, 0))
            graph, report, gradients = captured[refresh]
            graph.replay()
            run.guide.replayed(refresh=refresh, judge=bool(judge))
            run.take(report, gradients)
        # The schedule goes on as if the replayed steps had been ordinary ones.
        run.take(step(None), run.gradients())
    return run.hash.hexdigest()[:16]


def split(case: Case) -> str:
    """Hash the pure maths on plain tensors."""
    torch.manual_seed(0)
    gradients = torch.randn(2, 40, dtype=getattr(torch, case.dtype))
    parts = decompose(
        *gradients, torch.linalg.qr(torch.randn(40, 5, dtype=gradients.dtype)).Q.T, **case.guide
    )
    vectors = (parts.neutral, parts.helpful, parts.harmful, parts.combine(ETA))
    return hashlib.sha256(b"".join(map(bits, vectors))).hexdigest()[:16]


# ------------------------------------------------------------------------------- all configurations

NAN = float("nan")
TYPES = ("float32", "float64", "bfloat16")
OF_EXAMPLES = ("sketch", "svd", "exact")
OTHERS = ("mean", "random", "canonical")
BASES = (*OF_EXAMPLES, *OTHERS)
FOUR = ("sketch", "exact", "mean", "canonical")
CALLABLE, OTHER_FORMS = (
    [form for form in FORMS if ("callable" in form) == with_callable]
    for with_callable in (True, False)
)
SEVERAL = (
    "named",
    "judged_named",
    "accumulated",
    "named_accumulated",
    "auxiliary_first",
    "judged_accumulated",
)
MEAN: list[Any] = [{"include_mean": True}]
SETTINGS: list[Any] = [
    {"rank": 30},
    {"rank": 1},
    {"primary_weight": 0.0},
    {"parameters": "body.2"},
    *MEAN,
]
SETTINGS += [{"auxiliary_weight": 0.5, "refresh_every": 1}]
STORED: list[Any] = [
    {"basis_dtype": dtype} for dtype in (torch.bfloat16, torch.float16, torch.float64)
]
MODES: list[Any] = [{"batch_norm": "batch"}, {"batch_norm": "frozen"}]
Grid = dict[str, Sequence[Any]]  # one configuration for every choice of one value per field
ALONE: list[Grid] = [
    {
        "engine": ("loop", "hooks"),
        "basis": OF_EXAMPLES,
        "dtype": TYPES,
        "model": ("mlp", "cnn_group_norm"),
    },
    {"basis": OTHERS, "dtype": TYPES},
    {"engine": ["loop"], "model": tuple(BODIES)},
    # "hooks" has no rules for recurrent layers and einsum.
    {"engine": ["hooks"], "model": [name for name in BODIES if name not in ("lstm", "raw")]},
    {
        "engine": ["auto"],
        "basis": ["svd"],
        "model": ("wide", "cnn", "lstm", "raw", "tied", "transformer", "noise"),
    },
    {"basis": BASES, "guide": SETTINGS},
    {"basis": BASES[:-1], "guide": STORED},
    {"engine": ["hooks"], "basis": ["exact"], "model": ["transformer"], "guide": SETTINGS},
    {"form": OTHER_FORMS, "basis": ("sketch", "mean")},
    {"form": SEVERAL, "basis": ("exact", "canonical")},
    {"form": CALLABLE, "engine": ["hooks"], "basis": ("sketch", "svd")},
    {"form": CALLABLE, "engine": ["auto"], "model": ["wide"]},
    {
        "form": ["basis_losses"],
        "basis": ("svd", "mean"),
        "model": ("noise", "cnn", "lstm"),
        "guide": MODES,
    },
    {
        "form": ("judged", "judged_named"),
        "basis": ("sketch", "svd", "random"),
        "model": ["noise"],
        "guide": MEAN,
    },
    {"form": ("judged", "judged_named"), "model": ["transformer"], "guide": [{"judge_every": 2}]},
    {"event": tuple(EVENTS), "basis": FOUR},
    {"event": ("resume", "resume_without_basis", "retire"), "form": ["judged"]},
    {"event": ("resume", "resume_from_checkpoint"), "guide": STORED[:1]},
    {"model": ["norms"], "guide": [{"preset": name} for name in presets()]},
    {"scale": (0.0, 65536.0, 1e-18, NAN), "basis": ("sketch", "exact", "canonical")},
    {"scale": (0.0, 1e10, NAN), "engine": ["hooks"], "basis": ["exact"]},
    {
        "autocast": ["forward16"],
        "engine": ("loop", "hooks"),
        "model": ("mlp", "cnn_group_norm", "norms"),
    },
    {
        "autocast": ["step16"],
        "engine": ("loop", "hooks"),
        "basis": ("sketch", "svd"),
        "model": ["transformer"],
    },
    {
        "engine": ["none"],
        "basis": ["given"],
        "dtype": TYPES[:2],
        "form": ["decompose"],
        "guide": [{}, *MEAN],
    },
]
COMPILED: list[Grid] = [
    {"kind": ["inductor"], "basis": ("sketch", "svd"), "model": ["norms"]},
    {
        "kind": ["aot_eager"],
        "engine": ("loop", "auto"),
        "basis": ("sketch", "exact"),
        "model": ["norms"],
    },
]
KINDS = ("group", "ddp", "fsdp")
TOGETHER: list[Grid] = [
    {"kind": KINDS, "basis": BASES, "engine": ["auto"], "form": ["vector"]},
    {
        "kind": KINDS,
        "guide": [*SETTINGS[-3:], *STORED[:1], {"report_norms": "always"}],
        "dtype": ["float64"],
    },
    {
        "kind": KINDS,
        "form": ("plain", "basis_losses", "named", "named_late", "judged", "judged_named_in_verbs"),
    },
    {
        "kind": KINDS,
        "form": ("three_verbs", "auxiliary_first", "accumulated", "interleaved", "one_forward"),
    },
    {"kind": KINDS, "basis": ["canonical"], "form": ("named", "judged")},
    {"kind": KINDS, "model": ("wide", "transformer", "unused", "checkpointed", "cnn_group_norm")},
    {"kind": KINDS, "form": ("vector", "basis_losses", "named"), "shares": [(1, 0)]},
    {"kind": KINDS, "basis": ("sketch", "exact"), "scale": [NAN]},
    {"kind": KINDS, "event": ("resume", "resume_from_checkpoint")},
    {
        "kind": KINDS[:2],
        "engine": ["hooks"],
        "basis": ("sketch", "exact"),
        "model": ["tied"],
        "shares": [(2, 1), (1, 0)],
    },
]
CAPTURED: list[Grid] = [
    {"basis": BASES, "guide": [{}, *MEAN]},
    {"engine": ["loop"], "basis": OF_EXAMPLES, "model": ["norms"]},
    {
        "engine": ("loop", "hooks"),
        "model": ("wide", "norms", "channels_last"),
        "autocast": ("", "step16"),
    },
    {"basis": ("sketch", "canonical"), "guide": [{"eta": "auto", "judge_every": 1}]},
    {"guide": STORED[:1]},
]


def cases_of(grids: Sequence[Grid], **fixed: Any) -> Iterator[Case]:
    for grid in grids:
        for values in product(*grid.values()):
            yield seen(Case(**dict(zip(grid, values, strict=True)), **fixed))


def seen(case: Case) -> Case:
    """Give losses so that the engine sees the forward pass, where it has to; there BatchNorm may
    not mix examples.
    """
    if case.form != "plain" or case.engine not in ("hooks", "auto"):
        return case
    mixes = case.engine != "auto" and case.model in ("cnn", "channels_last_batch_norm")
    if mixes:
        return replace(case, form="basis_losses", guide=MODES[1])
    return replace(case, form="callable")


def selected(only: str, quick: bool, skip_compiled: bool) -> list[Case]:
    cases = list(cases_of(ALONE))[:: 9 if quick else 1]
    if not quick:
        cases += [] if skip_compiled else cases_of(COMPILED)
        cases += cases_of(TOGETHER)
    if torch.cuda.is_available() and not quick:
        cases += [case for case in cases_of(ALONE, device="cuda") if case.form != "decompose"]
        cases += cases_of(CAPTURED, device="cuda", form="captured")
    return list({case.name: case for case in cases if fnmatch(case.name, only)}.values())


# -------------------------------------------------------------------------------------- the command


def hash_each(cases: Sequence[Case], where: str = "", file: Path | None = None) -> dict[str, str]:
    """Hash cases in this process. Cases that raise are left out, with a line that names the reason
    and the engine.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # about skipped refreshes, vmap and compilers
    logger = logging.getLogger("attittud")
    messages = logging.handlers.BufferingHandler(sys.maxsize)
    logger.addHandler(messages)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # as in ordinary training
    hashes, start = {}, time.perf_counter()
    for number, case in enumerate(cases, 1):
        torch.use_deterministic_algorithms(case.device == "cuda", warn_only=True)
        messages.buffer.clear()
        try:
            hashes[case.name] = {"captured": replay, "decompose": split}.get(case.form, train)(case)
        except Exception as error:
            engines = [
                line
                for line in (record.getMessage() for record in messages.buffer)
                if "engine" in line
            ]
            last = [case.engine, *engines][-1]
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            sys.stderr.write(f"{where}{case.name} raised ({last}): {reason}\n")
        if file is not None:
            file.write_text(json.dumps(hashes))
        if number % 25 == 0 or number == len(cases):
            seconds = time.perf_counter() - start
            sys.stderr.write(f"{where}{number} of {len(cases)} configurations, {seconds:.0f} s\n")
    return hashes


def work(number: int, folder: str, cases: Sequence[Case]) -> None:
    """Be one of two workers."""
    store = f"file://{folder}/store"
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=2, timeout=patience)
    hash_each(cases, f"worker {number}: ", Path(folder, f"{number}.json"))
    dist.destroy_process_group()


def hash_all(cases: Sequence[Case]) -> dict[str, str]:
    """Hash cases here, or on two workers; their hashes are half of one each."""
    hashes = hash_each([case for case in cases if case.workers == 1])
    if together := [case for case in cases if case.workers == 2]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                torch.multiprocessing.spawn(work, (folder, together), nprocs=2)
            except (
                ProcessRaisedException,
                ProcessExitedException,
            ) as error:  # one raised, the other waited in vain
                sys.stderr.write(f"the workers ended early: {error}\n")
            first, second = (
                json.loads(Path(folder, f"{number}.json").read_text()) for number in (0, 1)
            )
        hashes |= {name: f"{first[name][:8]}{second[name][:8]}" for name in first if name in second}
    return hashes


def machine() -> dict[str, str | None]:
    """What the bits may depend on, and the revision of the code."""
    path = Path("/proc/cpuinfo")
    about = re.findall(
        r"(?m)^(?:model name|cpu family|model)\s*: (.*)$", path.read_text() if path.exists() else ""
    )
    return {
        "torch": torch.__version__,
        "processor": " ".join(
            [*(about[:3] or [platform.processor()]), torch.backends.cpu.get_cpu_capability()]
        ),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
        "revision": revision(),
    }


def compare(
    hashes: Mapping[str, str], here: Mapping[str, Any], saved: Mapping[str, Any], asked: set[str]
) -> int:
    """Say what differs from a file; 1 if anything does, or if a configuration that was hashed there
    raises here.
    """
    for name in ("torch", "processor", "device"):
        if saved[name] != here[name]:
            print(
                f"warning: {name} is {here[name]!r}, in the file {saved[name]!r}: numbers may lawfully differ"
            )
    before = saved["hashes"]
    differ = [name for name, value in hashes.items() if before.get(name, value) != value]
    raised = [name for name in before if name in asked and name not in hashes]
    new = [name for name in hashes if name not in before]
    for what, names in (("differ", differ), ("missing, because they raise", raised), ("new", new)):
        print(f"{what}: {len(names)}", *names, sep="\n    ")
    print(f"missing, because they were not asked for: {len(before.keys() - asked)}")
    print(f"the same: {len(hashes) - len(differ) - len(new)}")
    return 1 if differ or raised else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_hashes", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the hashes into a JSON file"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="list what differs from a file"
    )
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names to hash, such as 'hooks/*'"
    )
    parser.add_argument(
        "--quick", action="store_true", help="about 40 configurations in one process"
    )
    parser.add_argument(
        "--skip-compiled", action="store_true", help="without torch.compile, which is slow"
    )
    options = parser.parse_args()
    cases = selected(options.only, options.quick, options.skip_compiled)
    here, hashes = machine(), hash_all(cases)
    text = json.dumps({**here, "hashes": hashes}, indent=1) + "\n"
    if options.write:
        options.write.write_text(text)
    if options.compare:
        return compare(
            hashes, here, json.loads(options.compare.read_text()), {case.name for case in cases}
        )
    if not options.write:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
