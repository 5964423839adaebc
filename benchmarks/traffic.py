"""How many bytes workers exchange, as formulas; `python -m benchmarks.traffic` prints the table of
docs/appendix/traffic.md.

The size of a collective is the size of its tensor: the sum in an all-reduce, the whole tensor in an
all-gather or reduce-scatter. A ring of W workers sends 2(W-1)/W of it per worker for an all-reduce
and (W-1)/W for the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from attittud.basis.svd import OVERSAMPLING, POWER_ITERATIONS

NUMBER = 8  # k-vectors, inner products and counts are float64 or int64
FLAG = 4  # which losses reach a parameter, and fingerprints of what must be the same on all workers


@dataclass(frozen=True)
class Setting:
    """What decides the traffic of a guide.

    Args:
        shared: parameters that are decomposed (D).
        rest: trainable parameters that are not, such as heads.
        workers: W.
        rank: k.
        tasks: named auxiliary losses.
        examples: of all workers in a refresh (m); only `exact` and `svd` ask for it.
        tensors: trainable tensors (n); in a refresh replicas agree on which losses reach them.
        itemsize: bytes of a number of a gradient: 4, since arithmetic is in float32 at least.
    """

    shared: int
    rest: int = 0
    workers: int = 1
    rank: int = 10
    tasks: int = 1
    examples: int = 32
    tensors: int = 0
    basis: str = "sketch"
    include_mean: bool = False
    itemsize: int = 4

    @property
    def directions(self) -> int:
        """Rows of V."""
        return {"mean": 1, "canonical": 0}.get(self.basis, self.rank)


@dataclass(frozen=True)
class Bytes:
    """Payload of the collectives of one step: D-sized sums, and everything that does not grow with
    the model.
    """

    large: int
    small: int


def replicas_step(s: Setting, *, norms: bool = False) -> Bytes:
    """One step on replicas (DistributedDataParallel); `norms` as in the steps whose report states
    them.
    """
    if s.workers == 1:
        return Bytes(0, 0)
    counts = s.workers * (1 + s.tasks)
    alone = (
        norms and s.tasks == 1
    )  # the task's gradient is summed separately, so no k-vector has to be summed
    if s.basis == "canonical":
        vectors, numbers = 1 + s.tasks, 0
    elif s.include_mean or norms:
        inner = s.tasks if s.include_mean else 1
        vectors = 2
        numbers = 0 if alone else s.tasks * s.directions + inner
    else:
        vectors, numbers = 1, (1 + s.tasks) * s.directions
    return Bytes((vectors * s.shared + s.rest) * s.itemsize, (numbers + counts) * NUMBER)


def replicas_refresh(s: Setting) -> Bytes:
    """What a refresh on replicas exchanges in addition to its step (whose report states norms)."""
    wide = s.rank + OVERSAMPLING
    few = s.basis == "svd" and s.examples <= wide
    rows = {
        "sketch": s.rank,
        "mean": 1,
        "exact": s.examples,
        "svd": s.examples if few else (1 + POWER_ITERATIONS) * wide,
        "random": 0,
        "canonical": 0,
    }[s.basis]
    factors = (1 + POWER_ITERATIONS) * s.workers * wide**2 if s.basis == "svd" and not few else 0
    if s.workers == 1:
        return Bytes(0, 0)
    roles = (s.workers + 2 * s.tensors) * FLAG
    checksums = 2 * s.workers * NUMBER
    return Bytes(rows * s.shared * s.itemsize, factors * NUMBER + roles + checksums)


def shards_step(s: Setting) -> Bytes:
    """One step on shards (FSDP2), without the exchanges of the forward and backward passes
    themselves.
    """
    if s.workers == 1:
        return Bytes(0, 0)
    numbers = 1 + s.tasks * (5 if s.basis == "canonical" else 2) + (1 + s.tasks) * s.directions
    return Bytes(0, (numbers + s.workers * (1 + s.tasks)) * NUMBER)


def shards_refresh(s: Setting) -> Bytes:
    """A refresh of the bases `sketch`, `mean` and `random` on shards, without its backward
    passes.
    """
    if s.workers == 1:
        return Bytes(0, 0)
    k = s.directions
    same = s.workers * FLAG
    return Bytes(0, same if s.basis == "canonical" else 2 * k * k * NUMBER + k * s.itemsize + same)


def shards_passes(s: Setting) -> tuple[int, int]:
    """Backward passes of a step on shards, and how many more a refresh takes.

    Each reduces and scatters one gradient and, unless the parameters were kept after the forward
    pass, gathers them.
    """
    return 1 + s.tasks, {"sketch": s.rank, "exact": s.examples}.get(s.basis, 0)


def in_words(count: float) -> str:
    """1234567890 as 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.2g} {unit}"


def table() -> str:
    """Bytes that each worker sends, for 100 M to 70 B parameters on 1 to 1,024 workers; rank 10,
    one auxiliary loss.

    A refresh is stated without the step it happens in.
    """
    kinds = [
        f"{kind}: {what}" for kind in ("DDP", "FSDP2") for what in ("alone", "step", "refresh", "V")
    ]
    lines = [
        "| " + " | ".join(["parameters", "workers", *kinds]) + " |",
        "|---" * (2 + len(kinds)) + "|",
    ]
    for size, name in ((10**8, "100 M"), (10**9, "1 B"), (7 * 10**9, "7 B"), (70 * 10**9, "70 B")):
        for workers in (1, 8, 64, 1024):
            s = Setting(size, workers=workers)
            ring = (workers - 1) / workers
            step = replicas_step(s)
            refresh = replicas_refresh(s)
            stated = replicas_step(s, norms=True)
            passes, more = shards_passes(s)
            one_pass = 2 * ring * size * s.itemsize  # gather and scatter
            forward = ring * size * s.itemsize
            small, at_refresh = shards_step(s), shards_refresh(s)
            cells = [
                2 * ring * size * s.itemsize,
                2 * ring * (step.large + step.small),
                2 * ring * (refresh.large + refresh.small + stated.large - step.large),
                s.rank * size * s.itemsize,
                forward + one_pass,
                passes * (forward + one_pass) + 2 * ring * small.small,
                more * one_pass + 2 * ring * at_refresh.small,
                s.rank * size * s.itemsize / workers,
            ]
            lines.append(
                f"| {name} | {workers:,} | " + " | ".join(in_words(cell) for cell in cells) + " |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    sys.stdout.write(table() + "\n")
