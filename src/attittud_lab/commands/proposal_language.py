"""A first configuration for a language model that learns chats or texts."""

from __future__ import annotations

import json
from dataclasses import replace

from attittud_lab.config.options import check_path
from attittud_lab.config.schema import LanguageConfig, TextsConfig
from attittud_lab.data.source import open_source
from attittud_lab.errors import counted
from attittud_lab.language.conversations import PROMPTS, hold_out, looks_like_language, read, usual_columns

_COMPARE = (
    "# Is the guard worth its cost? Also train with language.guard=none, and with a lower language.lr. Every run also measures "
    "averages of the weights before and after training, which cost nothing."
)


def is_language(path: str, label: str | None) -> bool:
    """Whether a source has chats, prompts with replies, or texts, and no labels."""
    source = open_source(check_path(path, typed=True))
    split = "train" if "train" in source.splits else None
    return label is None and hasattr(source, "table") and looks_like_language(source.columns(split))


def propose_language(learn: str, protect: str | None, column: str | None) -> str:
    """Return commented YAML that is ready to train once it names a model."""
    new = _look(learn, column, "--primary")
    kept = None if protect is None else _look(protect, None, "--protect")
    found, usual = read(new, "--primary", 0), LanguageConfig()
    old = [] if kept is None else read(kept, "--protect", 0, prompts=_only_prompts(kept))
    hold_out(found, usual.validation, "--primary")
    if kept is not None:
        hold_out(old, usual.protect_validation, "--protect")
    count, known = len(found), len(old)
    steps = max(50, min(2000, 3 * count // usual.batch_size))
    key = "protect" if kept is None or not _only_prompts(kept) else "protect_prompts"
    guard = (
        "kl  # penalises divergence from the model before training; docs/guard.md lists other guards"
        if kept
        else "none"
    )
    lines = [
        f"# To learn: {counted(count, 'example')}, from {_columns(new)}.",
        "# No data are protected, so nothing will show what the model forgets."
        if kept is None
        else f"# Protected: {counted(known, 'example')}, from {_columns(kept)}.",
        *([] if kept is None else [_COMPARE]),
        "task: causal-lm",
        "model: hf:FOLDER  # the folder of a causal language model: config.json, model.safetensors, the tokenizer's files",
        "language:",
        *_source("learn", new),
        "  validation: 0.1  # held out, to measure what was learned",
        *(
            _source(key, kept)
            if kept is not None
            else ["  protect: null  # examples of what the model must not forget"]
        ),
        *(["  protect_validation: 0.2  # held out, to measure what was forgotten"] if kept is not None else []),
        f"  guard: {guard}",
        "  lora: null  # trains all weights; lora: 16 trains adapters instead, which need less memory (pip install peft)",
        f"  steps: {steps}  # about 3 passes over the new data, but at least 50 and at most 2000",
        f"  batch_size: {usual.batch_size}  # examples of the new data in a step",
        "  lr: 1e-5  # low, because forgetting depends mostly on the learning rate; 1e-4 for lora",
        f"  max_length: {usual.max_length}  # tokens of an example",
        "  precision: fp32  # bf16 on a GPU",
        "  tolerated: 0.05  # accept this much forgetting: the rise of the loss on protected data, in nats per token",
        "seed: 0",
        "output: runs  # run folders are created in it",
    ]
    return "\n".join(lines) + "\n"


def _look(path: str, column: str | None, where: str) -> TextsConfig:
    found = TextsConfig(path=check_path(path, typed=True), columns=None if column is None else [column])
    source = open_source(found.path)
    split = "train" if "train" in source.splits else None
    columns = found.columns or list(usual_columns(source.columns(split)) or ())
    if not columns and where == "--protect":
        columns = [name for name in source.columns(split) if name in PROMPTS][:1]  # prompts without replies
    return replace(found, columns=columns or None)


def _columns(config: TextsConfig) -> str:
    names = config.columns or []
    return f"the column{'s' * (len(names) > 1)} {', '.join(names)}"


def _only_prompts(config: TextsConfig) -> bool:
    return config.columns is not None and config.columns[0] in PROMPTS and not config.columns[1:]


def _source(name: str, config: TextsConfig) -> list[str]:
    found = {"path": config.path} | ({"columns": config.columns} if config.columns else {})
    return [f"  {name}:", *(f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in found.items())]
