"""Small models, data and a stock step on the summed objective, for the tests of the trainers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import Trainer

from attittud import Eta
from attittud.integrations.transformers import AttittudTrainer

pytest.importorskip("accelerate", reason="needs the extra 'transformers'")

from transformers_trainer import NUMBERS, make_trainer, sequences

__all__ = ["NUMBERS", "make_trainer", "sequences"]  # for the tests of the trainers

transformers.utils.logging.disable_progress_bar()

SUM = {"eta": Eta(neutral=1, helpful=1, harmful=1), "rank": 3, "refresh_every": 2}
WARNINGS = [
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop because we have not yet implemented the batching rule",
        "ignore:'pin_memory' argument is set as true but no accelerator:UserWarning",
    ),
]


def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    sizes = {"vocab_size": NUMBERS, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **tokens))


def classifier(labels: int = 3) -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    sizes = {"vocab_size": NUMBERS, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": labels}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **still))


def arguments(folder: Path, cls: Any = transformers.TrainingArguments, **settings: Any) -> Any:
    defaults = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
    }
    return cls(str(folder), **(defaults | settings))


def guided(
    folder: Path, args: dict[str, Any] | None = None, cls: type = AttittudTrainer, **own: Any
) -> AttittudTrainer:
    """A trainer of sequences that count up, with auxiliary sequences of the same kind."""
    usual = {"train_dataset": sequences(16, [1], 1), "auxiliary_datasets": sequences(16, [1], 2)}
    settings = {"model": llama(), "guide": SUM} | usual | own
    return cls(args=arguments(folder, **(args or {})), **settings)


def curve(trainer: Trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def summed(guided: type[Trainer], stock: type[Trainer]) -> type[Trainer]:
    """The stock step on the summed objective; only the data is drawn by the adapter."""

    class Summed(guided):
        training_step = stock.training_step

        def get_batch_samples(self, *args: Any) -> Any:
            self.micro_batch = 0
            return super().get_batch_samples(*args)

        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            for batches, items in self._window.values():
                batch = self._prepare_inputs(batches[self.micro_batch])
                loss = loss + super().compute_loss(model, batch, num_items_in_batch=items)
            self.micro_batch += 1
            return loss

    return Summed
