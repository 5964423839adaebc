"""Hash training steps, so that a refactoring can show that it changes no bit.

    python -m benchmarks.step_hashes --write hashes.json      # before
    python -m benchmarks.step_hashes --compare hashes.json    # after

Each case of `step_cases` trains a small model for five steps. Its hash covers parameters, buffers,
gradients and the report of every step; one with two workers has half a hash from each. Only public
names of the library are used, so that the script runs on both sides of a refactoring. Another
processor or another version of torch may round differently: compare on one machine.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

# Some virtual machines announce AMX and then kill the process that uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Otherwise cuBLAS may add in another order every time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import attittud.checkpoint
from attittud import Guide, Report
from attittud_lab.runs.result import provenance
from benchmarks import step_cases
from benchmarks.step_cases import COMPILED, Case

REPORTED = {
    *("neutral", "helpful", "harmful", "agreement", "captured_auxiliary", "captured_primary"),
    *("cosine", "effective_rank", "refreshed", "skipped_refreshes", "skipped_scores"),
    *("weight_neutral", "weight_helpful", "weight_harmful", "error_auxiliary"),
    *("score_neutral", "score_helpful", "score_harmful", "score_auxiliary", "score_primary"),
}
"""What a report says today. Names that a later version adds do not change a hash."""
SIZES = {"primary": (14, 9, 12, 6, 10), "auxiliary": (8, 11, 5, 13, 9)}
"""The sizes of the batches in steps 0 to 4."""
EVENT = 3
"""The step before which an event happens. The basis is new in steps 0, 2 and 4."""
FOR_BASIS, FOR_JUDGES = (8, 24), (16, 24)
"""Which of the 24 examples build the basis and judge, where they are not those of the step."""

# -------------------------------------------------------------------------------------------- a run


class Run:
    """A model in training with a guide."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        """For checkpoints. All workers have the same."""
        self.index = 0  # of the step
        self.hash = hashlib.sha256()
        torch.manual_seed(0)
        dtype = getattr(torch, case.dtype)
        self.inner = step_cases.TwoHeads(case.model).to(case.device, dtype)
        self.data = {}
        for head in SIZES:
            x = step_cases.inputs(case.model)
            y = torch.randint(3, (24,))
            if x.is_floating_point():
                x = x.to(dtype)
            self.data[head] = (x.to(case.device), y.to(case.device))
        self.model = self.wrapped()
        self.guide = self.make_guide()

    def wrapped(self) -> nn.Module:
        """`inner` as the training loop calls it: compiled, or spread over the workers."""
        if self.case.kind == COMPILED:
            torch.compiler.reset()
            return torch.compile(self.inner, backend=COMPILED)
        if self.case.kind == "ddp":
            return nn.parallel.DistributedDataParallel(self.inner)
        if self.case.kind == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (2,))
            fully_shard(self.inner.body, mesh=mesh)
            return fully_shard(self.inner, mesh=mesh)
        return self.inner

    def make_guide(self) -> Guide:
        settings = self.case.settings()
        if self.case.kind == "group":
            settings["process_group"] = dist.group.WORLD
        return Guide(self.model, **settings)

    def autocast(self, where: str) -> AbstractContextManager[Any]:
        if self.case.autocast != where:
            return nullcontext()
        # CUDA graphs do not allow autocast's cache.
        return torch.autocast(self.case.device, torch.bfloat16, cache_enabled=False)

    def step(self) -> None:
        """Make one training step, and add what it leaves behind to the hash."""
        if self.index == EVENT:
            self.event()
        self.inner.zero_grad()
        with self.autocast("step16"):
            report = several_verbs(self) if self.case.by_verbs else one_verb(self)
        self.take(report, self.gradients())
        if not self.is_broken():
            self.descend()
        self.index += 1

    def is_broken(self) -> bool:
        """Whether one example of this step has the loss NaN."""
        return math.isnan(self.case.scale) and self.index == 2

    def descend(self) -> None:
        """Take a step of SGD, which keeps no state. Its rate undoes the scale of the losses."""
        scale = 1.0
        if self.case.scale > 0:
            scale = self.case.scale
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
        for name, number in sorted(report.to_dict().items()):
            if name.split("/")[-1] in REPORTED:
                self.hash.update(f"{name} {float(number).hex()}".encode())

    # --------------------------------------------------------------------------------------- losses

    def batch(self, head: str) -> tuple[int, int]:
        """The examples of this step, as first and last one."""
        if self.case.kind == COMPILED or self.case.form == "captured":
            return 0, 12  # batches of one size
        return self.index, self.index + SIZES[head][self.index]

    def rows(self, head: str, start: int, stop: int) -> slice:
        """This worker's part of some examples."""
        if self.case.workers == 1:
            return slice(start, stop)
        shares = {"primary": self.case.shares, "auxiliary": (2, 1)}[head]
        ends = (start, start + (stop - start) * shares[0] // sum(shares), stop)
        rank = dist.get_rank()
        return slice(ends[rank], ends[rank + 1])

    def losses(self, head: str, start: int, stop: int) -> Any:
        """This worker's part of the losses of some examples.

        A worker without examples returns None or, under FSDP2, where all workers take part in every
        forward pass, an empty vector.
        """
        rows = self.rows(head, start, stop)
        count = rows.stop - rows.start
        if count == 0:
            if self.case.kind != "fsdp":
                return None
            rows = slice(0, 2)
        x, y = self.data[head]
        with self.autocast("forward16"):
            logits = self.model(x[rows], head)
            losses = F.cross_entropy(logits, y[rows], reduction="none")[:count]
        if self.is_broken() and head == "primary" and rows.start == self.index:
            return torch.cat([losses[:1] * torch.nan, losses[1:]])
        if math.isnan(self.case.scale):
            return losses
        return losses * self.case.scale

    def primary(self) -> Any:
        return self.losses("primary", *self.batch("primary"))

    def basis_losses(self) -> Any:
        return self.losses("primary", *FOR_BASIS)

    def judge(self) -> Any:
        """Judges that agree with the auxiliary task give it a weight within a few steps."""
        return self.losses("auxiliary", *FOR_JUDGES)

    def auxiliary(self) -> Any:
        """The auxiliary losses in the case's form: a mean, a vector or two named means."""
        losses = self.losses("auxiliary", *self.batch("auxiliary"))
        if self.case.form == "vector":
            return losses
        if "named" not in self.case.form:
            return losses.mean()
        if self.case.form == "named_late" and self.index < 2:
            return {"near": losses.mean()}
        return {"near": losses.mean(), "far": self.losses("primary", 2, 7)}

    def half(self, head: str, number: int) -> Any:
        """Half of the losses of the first or second half of the batch."""
        start, stop = self.batch(head)
        ends = (start, (start + stop) // 2, stop)
        return self.losses(head, ends[number], ends[number + 1]) / 2

    def both(self) -> tuple[Tensor, Tensor]:
        """Both losses from one forward pass."""
        x, y = self.data["primary"]
        rows = self.rows("primary", *self.batch("primary"))
        first, second = self.model(x[rows], "both")
        return F.cross_entropy(first, y[rows], reduction="none"), F.cross_entropy(second, y[rows])

    # --------------------------------------------------------------------------------------- events

    def event(self) -> None:
        if self.case.event.startswith("resume"):
            self.resume()
        elif self.case.event == "freeze":
            self.inner.body[0].weight.requires_grad_(False)
        elif self.case.event == "assign":
            self.inner.load_state_dict(copy.deepcopy(self.inner.state_dict()), assign=True)

    def resume(self) -> None:
        """Go on with a new guide, and in one process with a copy of the model."""
        if self.case.workers == 1:
            self.inner = copy.deepcopy(self.inner)
            self.model = self.inner
        old = self.guide
        self.guide = self.make_guide()
        if self.case.event == "resume_from_checkpoint":
            folder = self.folder / self.case.name.replace("/", "-")
            attittud.checkpoint.save(old, folder)
            attittud.checkpoint.load(self.guide, folder)
        else:
            state = old.state_dict(include_basis=self.case.event == "resume")
            self.guide.load_state_dict(copy.deepcopy(state))


def bits(x: Any) -> bytes:
    """The numbers of a tensor, or of this worker's shard. All NaNs count as the same."""
    if x is None:
        return b"none"
    if hasattr(x, "to_local"):
        x = x.to_local()
    x = x.detach().cpu()
    if x.is_floating_point():
        x = torch.where(x.isnan(), torch.nan, x)
    return str(x.dtype).encode() + x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# -------------------------------------------------------------------------------------------- forms


def one_verb(run: Run) -> Report:
    """Give all losses at once, in the form of the case."""
    form = run.case.form
    if form == "one_forward":
        return run.guide.backward(*run.both())
    options: dict[str, Any] = {}
    if "basis_losses" in form:
        options["basis_losses"] = run.basis_losses
    if "judged" in form and not (run.case.event == "retire" and run.index >= EVENT):
        options["judge"] = run.judge
    if form == "asked_refresh":
        options["refresh"] = run.index in (0, 3, 4)
    primary = run.primary if "callable" in form else run.primary()
    return run.guide.backward(primary, run.auxiliary(), **options)


def several_verbs(run: Run) -> Report:
    """Give losses one after the other, those of the whole batch or of both halves."""
    form = run.case.form
    if "judged" in form:
        run.guide.judge(run.judge)
    if "auxiliary_first" in form:
        auxiliary_by_verb(run)
        primary_by_verb(run)
    else:
        primary_by_verb(run)
        auxiliary_by_verb(run)
    return run.guide.combine()


def primary_by_verb(run: Run) -> None:
    form = run.case.form
    basis: dict[str, Any] = {}
    if "basis_losses" in form:
        basis["basis_losses"] = run.basis_losses
    if "accumulated" in form:
        run.guide.primary(run.half("primary", 0), **basis)
        run.guide.primary(run.half("primary", 1))
    elif "callable" in form:
        run.guide.primary(run.primary)
    else:
        run.guide.primary(run.primary(), **basis)


def auxiliary_by_verb(run: Run) -> None:
    if "accumulated" in run.case.form:
        run.guide.auxiliary(run.half("auxiliary", 0))
        run.guide.auxiliary(run.half("auxiliary", 1))
    else:
        run.guide.auxiliary(run.auxiliary())


# ------------------------------------------------------------------------------------------- hashes


def train(run: Run) -> str:
    """Make five steps; return their hash."""
    for _ in range(5):
        run.step()
    return run.hash.hexdigest()[:16]


def replay(run: Run) -> str:
    """Capture a plain step and a refresh as CUDA graphs and replay them on new data."""
    judge: dict[str, Any] = {}
    if "eta" in run.case.guide:
        judge["judge"] = run.judge

    def step(refresh: bool | None) -> Report:
        run.inner.zero_grad()
        # "hooks" has to see the forward pass.
        primary = run.primary if run.case.engine == "hooks" else run.primary()
        report = run.guide.backward(primary, run.auxiliary(), refresh=refresh, **judge)
        run.descend()
        return report

    captured = {}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with run.autocast("step16"):
        with torch.cuda.stream(stream):
            for refresh in (True, False, True, False):
                step(refresh)
        torch.cuda.current_stream().wait_stream(stream)
        for refresh in (False, True):
            graph = torch.cuda.CUDAGraph()
            run.inner.zero_grad()
            with torch.cuda.graph(graph):
                report = step(refresh)
            # Each graph writes into its own gradients.
            captured[refresh] = (graph, report, run.gradients())
        for refresh in (False, True, False, True, True, False):
            for x, y in run.data.values():
                x.copy_(x.roll(1, 0))
                y.copy_(y.roll(1, 0))
            graph, report, gradients = captured[refresh]
            graph.replay()
            run.guide.replayed(refresh=refresh, judge=bool(judge))
            run.take(report, gradients)
        # The schedule goes on as if the replayed steps had been ordinary ones.
        run.take(step(None), run.gradients())
    return run.hash.hexdigest()[:16]


def hash_each(cases: Sequence[Case], folder: Path, worker: str = "") -> dict[str, str]:
    """Hash cases in this process. A case that raises is left out, with a line that says why."""
    torch.set_num_threads(1)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as in ordinary training
    warnings.simplefilter("ignore")  # about skipped refreshes, vmap and compilers
    logging.getLogger("attittud").setLevel(logging.ERROR)
    hashes = {}
    for number, case in enumerate(cases, 1):
        torch.use_deterministic_algorithms(case.device == "cuda", warn_only=True)
        try:
            run = Run(case, folder)
            if case.form == "captured":
                hashes[case.name] = replay(run)
            else:
                hashes[case.name] = train(run)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            sys.stderr.write(f"{worker}{case.name} raised {reason}\n")
        if number % 50 == 0 or number == len(cases):
            sys.stderr.write(f"{worker}{number} of {len(cases)} cases\n")
    return hashes


def work(number: int, folder: Path, cases: Sequence[Case]) -> None:
    """Be one of two workers."""
    store = f"file://{folder}/store"
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=2, timeout=patience)
    hashes = hash_each(cases, folder, f"worker {number}: ")
    (folder / f"{number}.json").write_text(json.dumps(hashes))
    dist.destroy_process_group()


def hash_all(cases: Sequence[Case], folder: Path) -> dict[str, str]:
    """Hash cases here, and others on two workers: half of a hash is from each."""
    hashes = hash_each([case for case in cases if case.workers == 1], folder)
    together = [case for case in cases if case.workers == 2]
    if together:
        torch.multiprocessing.spawn(work, (folder, together), nprocs=2)
        first = json.loads((folder / "0.json").read_text())
        second = json.loads((folder / "1.json").read_text())
        for name in first.keys() & second.keys():
            hashes[name] = first[name][:8] + second[name][:8]
    return hashes


# -------------------------------------------------------------------------------------- the command


def selected(only: str, quick: bool) -> list[Case]:
    """The cases whose name matches a pattern, each once."""
    cases = [*step_cases.one_process()]
    if quick:
        cases = cases[::6]
    else:
        cases += [*step_cases.compiled(), *step_cases.two_workers()]
        if torch.cuda.is_available():
            cases += step_cases.on_a_gpu()
    return [*{case.name: case for case in cases if fnmatch(case.name, only)}.values()]


def machine() -> dict[str, Any]:
    """What the bits may depend on, and the revision of the code."""
    about = provenance()
    facts = {name: about[name] for name in ("torch", "processor", "revision")}
    facts["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return facts


def compare(hashes: Mapping[str, str], saved: Mapping[str, Any], asked: set[str]) -> int:
    """Say what differs from a file; 1 if anything does, or if a case raises that did not there."""
    here = machine()
    for name in ("torch", "processor", "device"):
        if saved[name] != here[name]:
            print(f"warning: {name} is {here[name]!r}, in the file {saved[name]!r}")
    before = saved["hashes"]
    differ = [name for name in hashes if name in before and before[name] != hashes[name]]
    raised = sorted(asked.intersection(before).difference(hashes))
    new = sorted(hashes.keys() - before.keys())
    groups = {"differ": differ, "missing, because they raise": raised, "new": new}
    for title, names in groups.items():
        print(f"{title}: {len(names)}", *names, sep="\n    ")
    print(f"missing, because they were not asked for: {len(before.keys() - asked)}")
    print(f"the same: {len(hashes) - len(differ) - len(new)}")
    return int(bool(differ or raised))


def main() -> int:
    about = "Hash training steps, so that a refactoring can show that it changes no bit."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_hashes", description=about)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write hashes as JSON")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="say what differs from a file")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names, such as 'hooks/*'")
    parser.add_argument("--quick", action="store_true", help="about 30 cases, in one process")
    options = parser.parse_args()
    cases = selected(options.only, options.quick)
    with tempfile.TemporaryDirectory() as folder:
        hashes = hash_all(cases, Path(folder))
    if options.write:
        text = json.dumps({**machine(), "hashes": hashes}, indent=1)
        options.write.write_text(f"{text}\n")
    if options.compare:
        saved = json.loads(options.compare.read_text())
        return compare(hashes, saved, {case.name for case in cases})
    return 0


if __name__ == "__main__":
    sys.exit(main())
