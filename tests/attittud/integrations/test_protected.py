"""The losses of protected data, the divergence from the start model, and what was forgotten."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers
from transformers import Trainer

from attittud.integrations.guard import GuardMixin
from attittud.integrations.protected import _first_examples, _own_examples, pad, replies
from tests.helpers.trainers import WARNINGS, arguments, curve, llama

pytestmark = WARNINGS


class Guarded(GuardMixin, Trainer):
    pass


def rows(count: int, seed: int, length: int = 8) -> list[dict[str, list[int]]]:
    """Sequences in which the first tokens do not count."""
    random = torch.Generator().manual_seed(seed)
    found = torch.randint(2, 20, (count, length), generator=random).tolist()
    return [
        {"input_ids": row[: length - i % 3], "labels": [-100, -100, *row[2 : length - i % 3]]}
        for i, row in enumerate(found)
    ]


def trainer(folder: Path, **settings: Any) -> Guarded:
    own = {"guard": "a_gem", "protect_dataset": rows(4, 2), "protect_loss": "kl"} | settings
    args = arguments(folder, **{"max_steps": 3} | own.pop("args", {}))
    return Guarded(own.pop("model", None) or llama(), args, train_dataset=rows(16, 1), data_collator=pad, **own)


def test_the_divergence_is_measured_from_the_start_weights(tmp_path: Path) -> None:
    """Checked by an independent formula, after training has moved the weights."""
    start, run = llama(), trainer(tmp_path)
    run.train()
    batch = pad(rows(4, 2))
    losses = run.protected_loss(run.model, {"protected": ([batch], None)}, single=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        before = F.log_softmax(start(**inputs).logits[:, :-1], -1)
    now = F.log_softmax(run.model(**inputs).logits[:, :-1], -1)
    each = F.kl_div(now, before, log_target=True, reduction="none").sum(-1)
    counted = batch["labels"][:, 1:] != -100
    want = (each * counted).sum(1) / counted.sum(1)
    assert losses.tolist() == pytest.approx(want.tolist(), rel=1e-4) and min(losses.tolist()) > 1e-5
    parameters = list(run.model.parameters())
    for one, other in zip(
        torch.autograd.grad(losses.sum(), parameters), torch.autograd.grad(want.sum(), parameters), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_divergence_has_a_gradient_of_exactly_zero_at_the_start(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.protected_loss.begin(run.model)
    losses = run.protected_loss(run.model, {"protected": ([pad(rows(4, 2))], None)}, single=False)
    assert all(not gradient.any() for gradient in torch.autograd.grad(losses.sum(), list(run.model.parameters())))


class Functional(torch.nn.SiLU):
    """Dropout as a function, as OPT and BART have it."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x), p=self.dropout, training=self.training)


@pytest.mark.parametrize("kind", ["nll", "kl"])
def test_dropout_is_off_when_outputs_are_compared_with_the_start_model(tmp_path: Path, kind: str) -> None:
    model = llama()
    model.model.layers[0].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))
    model.model.layers[0].self_attn.attention_dropout = 0.5
    model.model.layers[1].mlp.act_fn = Functional()
    run = trainer(tmp_path, model=model, protect_loss=kind)
    run.protected_loss.begin(model)
    model.train()
    dropout, attention = model.model.layers[0].mlp.act_fn[1], model.model.layers[0].self_attn
    with run.protected_loss.undisturbed(model):
        losses = run.protected_loss(model, {"protected": ([pad(rows(4, 2))], None)}, single=False)
        assert dropout.training == bool(attention.attention_dropout) == (kind == "nll")
    assert dropout.training and attention.attention_dropout == 0.5 and model.training
    assert model.model.layers[1].mlp.act_fn.dropout == 0.5
    assert (losses.item() == 0) == (kind == "kl")


def test_forgetting_is_the_change_of_the_mean_loss_over_tokens(tmp_path: Path) -> None:
    held_out = rows(7, 5)
    run = trainer(tmp_path, protect_eval_dataset=held_out, args={"per_device_eval_batch_size": 3})

    def mean(model: torch.nn.Module) -> float:
        batch = pad(held_out)
        with torch.no_grad():
            return float(model(**batch).loss)

    before = mean(run.model)
    run.train()
    assert run.evaluate(held_out)["eval_forgetting"] == pytest.approx(mean(run.model) - before, rel=1e-4)


def test_the_model_writes_the_replies_and_only_their_tokens_count() -> None:
    class Words:
        """A tokenizer of numbers, which ends texts."""

        eos_token_id = 1

        def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.tensor([[*map(int, text.split()), self.eos_token_id]])}

        def apply_chat_template(self, messages: Any, **_: Any) -> dict[str, torch.Tensor]:
            ids = self(" ".join(message["content"] for message in messages), "pt")["input_ids"]
            return {"input_ids": ids[:, :-1]}

    model = llama().train()
    prompts = ["3 4 5", [{"role": "user", "content": "7 8"}]]
    found = replies(model, Words(), prompts, 6)
    assert model.training
    for asked, row in zip((3, 2), found, strict=True):
        ids, labels = row["input_ids"], row["labels"]
        assert labels[:asked] == [-100] * asked and labels[asked:] == ids[asked:] and asked < len(ids) <= asked + 6
        with torch.no_grad():
            likeliest = model.eval()(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        assert ids[asked:] == likeliest[asked - 1 : -1]
        model.train()
    with pytest.raises(ValueError, match="processing_class"):
        replies(model, None, prompts, 6)
    model.config.max_position_embeddings = 5
    assert [len(row["input_ids"]) for row in replies(model, Words(), prompts, 6)] == [5, 5]
    assert len(replies(model, Words(), prompts, 6, longest=4)[0]["input_ids"]) == 4
    with pytest.raises(
        ValueError, match=r"protect_prompts\[1\] has 5 tokens and leaves no room .* reads 5 tokens at most"
    ):
        replies(model, Words(), ["3 4", "3 4 5 6 7"], 6)


def test_a_batch_without_labels_is_refused(tmp_path: Path) -> None:
    data = [{"input_ids": row["input_ids"][:4]} for row in rows(4, 2)]
    collate = lambda batch: {"input_ids": torch.tensor([row["input_ids"] for row in batch])}  # noqa: E731 - as short as what it replaces
    run = trainer(tmp_path, protect_dataset=data, protect_collator=collate)
    run.protected_loss.begin(run.model)
    with pytest.raises(ValueError, match=r"'labels'.*protect_collator"):
        run.protected_loss(run.model, {"protected": ([collate(data)], None)}, single=False)


def test_forgetting_of_several_sets_is_over_all_their_tokens(tmp_path: Path) -> None:
    sets = {"short": rows(4, 2, length=6), "long": rows(4, 3, length=9)}
    run = trainer(tmp_path, protect_dataset=sets, protect_loss="nll", shares=())
    whole = [row for several in sets.values() for row in several]

    def mean() -> float:
        with torch.no_grad():
            return float(run.model(**pad(whole)).loss)

    before = mean()
    run.train()
    assert run.evaluate(whole)["eval_forgetting_protected"] == pytest.approx(mean() - before, rel=1e-4)


def test_forgetting_is_exactly_zero_at_the_start_under_autocast(tmp_path: Path) -> None:
    """The Trainer gives the model its autocast only when training begins; both losses must be rounded alike."""
    run = trainer(tmp_path, guard="none", protect_loss=None, shares=(0.0,), args={"bf16": True, "learning_rate": 0.1})
    run.train()
    assert run.averages[0.0]["forgetting"] == 0


def test_averages_have_the_loss_that_an_evaluation_logs(tmp_path: Path) -> None:
    """The Trainer smooths labels in evaluations too."""
    args = {"label_smoothing_factor": 0.3, "eval_strategy": "steps", "eval_steps": 3, "learning_rate": 0.1}
    run = trainer(tmp_path, guard="replay", protect_loss="nll", eval_dataset=rows(6, 4), shares=(1.0,), args=args)
    run.train()
    assert run.averages[1.0]["eval_loss"] == pytest.approx(curve(run, "eval_loss")[-1], rel=1e-5)
    with torch.no_grad():
        assert run.averages[1.0]["eval_loss"] > float(run.model(**pad(rows(6, 4))).loss) * 1.01


def classifier(size: int = 8) -> transformers.PreTrainedModel:
    sizes = {"hidden_size": size, "intermediate_size": size, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, num_labels=3, **sizes))


def test_the_divergence_of_a_classifier_is_refused_with_another_guard_as_cure(tmp_path: Path) -> None:
    for guard, words in (
        ("kl", "guard='kl' needs a language model.* BertForSequenceClassification .* choose guard='replay', 'a_gem'"),
        ("a_gem", "protect_loss='kl' needs a language model.* leave it out: guard='a_gem' then uses"),
    ):
        with pytest.raises(ValueError, match=words):
            trainer(tmp_path, model=classifier(), guard=guard)
    trainer(tmp_path, model=classifier(), guard="replay", protect_loss=None)
    unknown = classifier()
    unknown.loss_type = None  # as in a model of one's own; its first protected batch shows the shape
    run = trainer(tmp_path, model=unknown, guard="kl")
    with pytest.raises(ValueError, match=r"guard='kl' needs .* has logits of shape \(4, 3\)"):
        run.protected_loss(run.model, {"protected": ([pad(rows(4, 2))], None)}, single=False)


def test_noise_in_embeddings_is_off_when_outputs_are_compared_with_the_start_model(tmp_path: Path) -> None:
    run = trainer(tmp_path, shares=(), args={"neftune_noise_alpha": 5.0})
    run.train()
    assert curve(run, "loss_protected")[0] == 0
    alpha = "neftune_noise_alpha"
    embedding = run.model.get_input_embeddings()
    embedding.neftune_noise_alpha = 5.0
    with run.protected_loss.undisturbed(run.model):
        assert getattr(embedding, alpha) == 0
    assert getattr(embedding, alpha) == 5.0


IGNORED = [{"input_ids": [3, 4, 5], "labels": [-100] * 3}] * 4


@pytest.mark.parametrize("guard", ["kl", "replay", "a_gem"])
def test_protected_data_in_which_nothing_counts_are_refused(tmp_path: Path, guard: str) -> None:
    with pytest.raises(ValueError, match="protect_dataset=: a batch has no token that counts"):
        trainer(tmp_path, guard=guard, protect_dataset=IGNORED, protect_eval_dataset=rows(4, 3)).train()
    with pytest.raises(ValueError, match="protect_eval_dataset= has no token that counts"):
        trainer(tmp_path, guard=guard, protect_eval_dataset=IGNORED).train()


def test_an_error_in_protected_data_names_their_argument(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    with pytest.raises(ValueError, match="protect_dataset=: No columns in the dataset match"):
        trainer(tmp_path, protect_dataset=datasets.Dataset.from_dict({"a": [[1]]})).train()
    with pytest.raises(ValueError, match=r"protect_dataset=: the collator .*KeyError: 'input_ids'"):
        trainer(tmp_path, protect_dataset=[{"a": 1}]).train()


def test_averages_of_a_second_training_begin_with_the_first_start(tmp_path: Path) -> None:
    run = trainer(tmp_path, guard="none", protect_loss=None, shares=(0.0, 1.0), args={"learning_rate": 0.1})
    run.train()
    lost = run.averages[1.0]["forgetting"]
    run.train()
    assert run.averages[0.0]["forgetting"] == 0 and run.averages[1.0]["forgetting"] not in (0, lost)


@pytest.mark.parametrize("packed", [False, True])
def test_repeated_examples_of_a_last_batch_do_not_count(packed: bool) -> None:
    """Three examples on two workers with two examples each: the second worker's last example is a repeated one."""
    labels = torch.arange(6).view(1, 6) if packed else torch.arange(6).view(2, 3)
    inputs = {"labels": labels} | ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])} if packed else {})
    loader = SimpleNamespace(remainder=3, end_of_dataloader=True, total_batch_size=4)
    counted = {}
    for index in (0, 1):
        own = _own_examples(loader, SimpleNamespace(num_processes=2, process_index=index))
        counted[index] = (_first_examples(inputs, own) != -100).sum().item()
    assert counted == {0: 6, 1: 3}
    loader.end_of_dataloader = False
    assert _own_examples(loader, SimpleNamespace(num_processes=2, process_index=1)) is None


@pytest.mark.parametrize("name", ["held_out", "judge_dataset"])
def test_reserved_names_of_protected_sets_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        trainer(tmp_path, protect_dataset={"first": rows(4, 2), name: rows(4, 3)})


@pytest.mark.parametrize("kind", ["trained", "pissa", "head"])
def test_adapters_that_already_change_the_model_belong_to_the_start_model(tmp_path: Path, kind: str) -> None:
    """Adapters from an earlier training, adapters that begin with a part of the weights, and whole modules next to adapters."""
    peft = pytest.importorskip("peft", reason="needs peft")
    options = {"pissa": {"init_lora_weights": "pissa"}, "head": {"modules_to_save": ["lm_head"]}}.get(kind, {})
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"], **options))
    if kind == "trained":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(0.3)
    batch = pad(rows(4, 2))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        before = model.eval()(**inputs).logits
    run = trainer(tmp_path, model=model, shares=(0.0,), args={"learning_rate": 0.1})
    run.train()
    with torch.no_grad():
        assert not torch.allclose(run.model.eval()(**inputs).logits, before, atol=1e-4)
    assert torch.allclose(run.protected_loss._start_logits([batch])[0], before, atol=1e-5)
    assert run.averages[0.0]["forgetting"] == pytest.approx(0, abs=1e-5)


def test_labels_of_models_that_do_not_predict_the_next_token_are_not_shifted(tmp_path: Path) -> None:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=16, num_labels=20, **size)
    model = transformers.BertForTokenClassification(config).eval()
    run = trainer(tmp_path, model=model, guard="replay", protect_loss="nll", shares=())
    with torch.no_grad():
        want = float(model(**pad(rows(4, 2))).loss)
    assert run.forgetting is not None
    run.forgetting.begin(run.model)
    assert run.forgetting.start == pytest.approx(want, rel=1e-5)
