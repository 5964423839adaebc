"""Does `training.compile` pay? The command line's own steps with and without it, in turns in one process.

    python -m benchmarks.compiled --out benchmarks/compiled.json

`images` is the paper's network with 256 and 50 images in a step (experiments/configs/cat-vs-dog.yaml), `texts` an encoder of
MiniLM's size with 128 blocks of text and 32 labelled ones (experiments/configs/text.yaml); on a GPU their steps are CUDA graphs.
Also how long it takes to compile: at first, and in a later process that finds the code on the disk.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.models.compiling import compile_body, compiling, is_compiled
from attittud_lab.models.network import Network, build_model
from attittud_lab.training.devices import captures, on_device, own_stream, repeatable
from attittud_lab.training.phase import Phase
from benchmarks import encoder
from benchmarks.results import provenance
from benchmarks.timing import interleaved

EXPERIMENTS = Path(__file__).parent.parent / "experiments" / "configs"
WORKLOADS = ("images", "texts")
BLOCK = 10
"""Steps that are timed at once: as many as lie between two refreshes."""
TINY = [
    "training.guided.primary_batch=6",
    "training.guided.batch_size=8",
    "training.precision=fp32",
    "strategy.basis_batch=8",
]


def images(more: list[str], *, tiny: bool) -> tuple[Config, Prepared, Callable[[], Network]]:
    more = ["model.name=wideresnet-10-1", *TINY, *more] if tiny else more
    # (The file is for comparisons, which tune multitask.)
    config = load(EXPERIMENTS / "cat-vs-dog.yaml", ["compare.weights=[0.3, 1]", *more])

    def task(name: str, classes: int, count: int) -> Task:
        pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
        return Task(name, "classify", [str(i) for i in range(classes)], Examples(pixels, torch.arange(count) % classes))

    primary, others = task("primary", 2, 100), task("others", 8, 64 if tiny else 4096)
    data = Prepared("image", primary, primary.examples, primary.examples, {"others": others})
    return config, data, lambda: build_model(config.model, data, 0)


def texts(more: list[str], *, tiny: bool) -> tuple[Config, Prepared, Callable[[], Network]]:
    more = [*TINY, *more] if tiny else more
    config = load(
        EXPERIMENTS / "text.yaml",
        ["data.auxiliary.text={path: none, objective: masked_lm}", *more],
    )
    length = 16 if tiny else config.data.max_length
    labelled = Examples(encoder.texts(500, length), torch.arange(500) % 2)
    auxiliary = Task("text", "masked_lm", [], Examples(encoder.texts(64 if tiny else 4096, length), None))
    data = Prepared(
        "text", Task("primary", "classify", ["no", "yes"], labelled), labelled, labelled, {"text": auxiliary}
    )
    return config, data, lambda: encoder.network(tiny=tiny)


def measure(
    name: str, more: list[str], device: torch.device, *, tiny: bool, repeats: int, limit: float
) -> dict[str, Any]:
    from torch._inductor.utils import fresh_cache

    torch.manual_seed(0)
    config, data, network = (images if name == "images" else texts)(more, tiny=tiny)
    data = on_device(data, device)
    captured = captures(config, data, device)

    def begun(*, compiled: bool) -> tuple[Phase, float]:
        """A phase after enough steps to see every kind of step, and the seconds that these took."""
        model = network().to(device).train()
        if config.training.channels_last:
            model = model.to(memory_format=torch.channels_last)
        if compiled:
            compile_body(model)
        phase = Phase("guided", config, data, model, device, "accuracy", captured=captured)
        began = time.perf_counter()
        steps(phase, 5 * BLOCK)  # each kind of step is recorded after its warm-up
        synchronize(device)
        assert is_compiled(model) is compiled, "it could not be compiled"
        return phase, time.perf_counter() - began

    with ExitStack() as opened:
        opened.enter_context(fresh_cache())
        opened.enter_context(repeatable(config.training.deterministic, device))
        opened.enter_context(own_stream(device) if captured else nullcontext())
        opened.enter_context(compiling(True, deterministic=config.training.deterministic))
        usual, seconds = begun(compiled=False)
        _, first = begun(compiled=True)
        torch.compiler.reset()
        phase, later = begun(compiled=True)
        _, again = begun(compiled=True)
        actions = {"usual": lambda: steps(usual, BLOCK), "compiled": lambda: steps(phase, BLOCK)}
        times = interleaved(actions, device, repeats=repeats, limit=limit)
    losses = {
        kind: float(found.streams.values["loss/primary"]) for kind, found in (("usual", usual), ("compiled", phase))
    }
    return {
        "strategy": config.strategy.name,
        "captured": captured,
        "milliseconds_per_step": {kind: 1000 * value / BLOCK for kind, value in times.items()},
        "usual_to_compiled": times["usual"] / times["compiled"],
        "seconds_to_begin": {"usual": seconds, "compiled": first, "from the disk": later, "same process": again},
        "finite": all(map(math.isfinite, losses.values())),
    }


def steps(phase: Phase, count: int) -> None:
    for _ in range(count):
        phase.step()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--strategies", nargs="+", default=["multitask"])
    parser.add_argument("--tiny", action="store_true", help="small networks: a check that all of it runs")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--limit", type=float, default=5, help="seconds for each workload, without what compiling takes"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("more", nargs="*", metavar="KEY=VALUE", help="settings, as for `attittud train`")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in given.workloads:
        for strategy in given.strategies:
            more = [f"strategy.name={strategy}", *given.more]
            settings = {"tiny": given.tiny, "repeats": given.repeats, "limit": given.limit}
            found[f"{name}, {strategy}"] = measure(name, more, torch.device(given.device), **settings)
            print(json.dumps({f"{name}, {strategy}": found[f"{name}, {strategy}"]}, indent=1), flush=True)
            if given.out is not None:  # written after each measurement, so that none is lost
                given.out.parent.mkdir(parents=True, exist_ok=True)
                about = {"made_with": provenance(given.device, 0, given.tiny)}
                given.out.write_text(json.dumps(found | about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
