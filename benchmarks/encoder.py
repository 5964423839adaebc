"""What a refresh costs on a text encoder of MiniLM's size: one backward pass (`hooks`) against k of them (`loop`).

    python -m benchmarks.encoder --out benchmarks/encoder.json

The encoder is the one of the command line, with padded texts of unequal lengths and word embeddings left out. A refresh
is what a step with one takes longer than a step without; on a GPU also as CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud import Eta, Guide
from attittud_lab.data.tasks import Examples, Task, per_example_losses
from attittud_lab.models.huggingface import Encoder
from attittud_lab.models.network import Network
from benchmarks.results import provenance
from benchmarks.timing import captured, interleaved

ENGINES = ("hooks", "batched", "loop")
RANK = 10


class Numbers:
    """A tokenizer without words: only its special numbers are needed."""

    pad_token_id, mask_token_id, all_special_ids = 0, 103, (0, 100, 101, 102, 103)

    def __len__(self) -> int:
        return 30522

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool, **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[101, 1037, 102] if add_special_tokens else [1037] for _ in texts]}


def network(*, tiny: bool) -> Network:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    if tiny:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=30522, **sizes)
    return Network(Encoder(BertModel(config), Numbers()), {"primary": 2, "text": None})


def texts(count: int, length: int) -> Tensor:
    """Full rows of tokens, every other one shorter and padded."""
    found = torch.randint(1000, 30000, (count, length))
    found[:, 0] = 101
    ends = torch.where(torch.arange(count) % 2 == 0, length, torch.randint(length // 4, length, (count,)))
    return found.masked_fill(torch.arange(length) >= ends[:, None], 0)


def steps(
    device: torch.device, *, tiny: bool, count: int, length: int, engines: Sequence[str]
) -> dict[str, Callable[[], object]]:
    """Steps with and without a refresh, by engine."""
    torch.manual_seed(0)
    model = network(tiny=tiny).to(device).train()
    batches = {name: texts(count, length).to(device) for name in ("primary", "basis", "text")}
    labels = torch.arange(count, device=device) % 2
    primary = Task("primary", "classify", ["no", "yes"], Examples(batches["primary"], labels))
    text = Task("text", "masked_lm", [], Examples(batches["text"], None))
    half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def losses(task: Task, name: str) -> Tensor:
        with half:
            return per_example_losses(model, task, batches[name], labels)

    def step(guide: Guide, *, refresh: bool) -> None:
        model.zero_grad(set_to_none=True)
        guide.backward(
            losses(primary, "primary"),
            losses(text, "text").mean(),
            basis_losses=partial(losses, primary, "basis"),
            refresh=refresh,
        )

    found: dict[str, Callable[[], object]] = {}
    for engine in engines:
        guide = Guide(
            model,
            eta=Eta(neutral=1, helpful=1, harmful=0),
            rank=2 if tiny else RANK,
            engine=engine,
            parameters=lambda name, _: "word_embeddings" not in name,
        )
        found[f"{engine}, refresh"] = partial(step, guide, refresh=True)
        found[f"{engine}, step"] = partial(step, guide, refresh=False)
    return found


def measure(
    device: torch.device, *, tiny: bool, count: int, length: int, repeats: int, limit: float, engines: Sequence[str]
) -> dict[str, Any]:
    plain = steps(device, tiny=tiny, count=count, length=length, engines=engines)
    for action in (*plain.values(), *plain.values()):
        action()
    times = {"eager": interleaved(plain, device, repeats=repeats, limit=limit)}
    if device.type == "cuda":
        pool = torch.cuda.graph_pool_handle()
        graphs = {name: captured(action, device, pool) for name, action in plain.items()}
        times["graph"] = interleaved(graphs, device, repeats=repeats, limit=limit)
    refresh = {
        kind: {engine: found[f"{engine}, refresh"] - found[f"{engine}, step"] for engine in engines}
        for kind, found in times.items()
    }
    return {
        "rank": 2 if tiny else RANK,
        "examples": count,
        "length": length,
        "seconds": times,
        "refresh": refresh,
        "loop_to_hooks": {kind: found["loop"] / found["hooks"] for kind, found in refresh.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoder", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--examples", type=int, default=32, help="that build the basis, as many as in both batches")
    parser.add_argument("--length", type=int, default=128, help="tokens of a text")
    parser.add_argument("--tiny", action="store_true", help="a small encoder: a check that all of it runs")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--limit", type=float, default=30, help="seconds for each kind of step")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    given = parser.parse_args()
    found = measure(
        torch.device(given.device),
        tiny=given.tiny,
        count=given.examples,
        length=given.length,
        repeats=given.repeats,
        limit=given.limit,
        engines=given.engines,
    )
    found["made_with"] = provenance(given.device, 0, given.tiny)
    text = json.dumps(found, indent=1)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
