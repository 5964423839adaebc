"""A tiny language model with a tokenizer and a chat template in a folder, and files of sentences that count."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config

NUMBERS = 20
WORDS = ["<pad>", "<eos>", "<user>", "<assistant>", *map(str, range(NUMBERS))]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
JOB = """
task: causal-lm
model: hf:tiny
language: {learn: new.jsonl, protect: old.jsonl, guard: a_gem, steps: 12, lr: 1e-2, evaluations: 3, batch_size: 4, validation: 8}
device: cpu
log_every: 2
checkpoint_every: 4
"""


def tokenizer(*, chat: bool = True) -> Any:
    """A word for each number."""
    rule = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    rule.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=rule, pad_token="<pad>", eos_token="<eos>")
    if chat:
        made.chat_template = TEMPLATE
    return made


def save_model(folder: Path, *, chat: bool = False) -> None:
    """Dropout in it shows whether random numbers go on after a resume."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        attention_dropout=0.1,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(chat=chat).save_pretrained(folder)


def count(start: int, step: int) -> str:
    return " ".join(str((start + step * number) % NUMBERS) for number in range(4 + start % 5))


def save_lines(path: str | Path, rows: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_files() -> None:
    """`tiny`, `new.jsonl` and `old.jsonl` in the folder where we are."""
    save_model(Path("tiny"))
    save_lines("new.jsonl", [{"text": f"{count(i, 3)} {i % 7}"} for i in range(60)])
    save_lines("old.jsonl", [{"text": f"{count(i, 1)} {i % 7}"} for i in range(30)])


def job(*overrides: str) -> Config:
    return loads(JOB, overrides)
