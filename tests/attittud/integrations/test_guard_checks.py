"""What a user hands to a guard: each refusal names the argument and the cure."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attittud.integrations.guard_checks import (
    CheckedCollator,
    check_guide,
    check_model,
    check_numbers,
    check_single,
    held_out_set,
    protected_sets,
)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weight": "a"}, "protect_weight must be a finite number, got 'a'"),
        ({"batch_size": 0}, "protect_batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "protect_batch_size must be a whole number"),
        ({"reply_tokens": 0}, "reply_tokens must be a whole number"),
        ({"shares": 0.5}, r"shares= takes several numbers, .* write \(0.5,\)"),
        ({"shares": ["a"]}, "shares must be a finite number"),
    ],
)
def test_wrong_numbers_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"weight": None, "batch_size": None, "reply_tokens": 8, "shares": [0, 1]}
    assert check_numbers(**usual) == (0.0, 1.0)
    with pytest.raises((TypeError, ValueError), match=words):
        check_numbers(**usual | settings)


@pytest.mark.parametrize(
    ("dataset", "prompts", "words"),
    [
        ([], None, "protect_dataset= is empty; give at least one example"),
        ({}, None, "protect_dataset= is an empty dict"),
        ({"a": [1], "b": []}, None, "protect_dataset= 'b' is empty"),
        (None, "1 2 3", "protect_prompts= takes a list of texts or of chats, got a str; write"),
        (None, {"prompt": ["1"]}, "got a dict; .*list.table"),
        (None, [], "protect_prompts= is empty"),
        (None, [""], r"protect_prompts\[0\] is ''; a prompt is a text that is not empty"),
        (None, ["1", {"prompt": "1 2"}], r"protect_prompts\[1\] is {'prompt': '1 2'}"),
        (None, [[{"text": "1"}]], "a list of messages such as"),
    ],
)
def test_wrong_protected_data_are_refused_by_name(dataset: Any, prompts: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        protected_sets("a_gem", True, dataset, prompts)


def test_usable_data_are_taken_by_name() -> None:
    assert protected_sets("none", False, None, None) == {}
    assert protected_sets("a_gem", True, [1], None) == {"protected": [1]}
    assert protected_sets("a_gem", True, {"a": [1]}, None) == {"a": [1]}
    assert protected_sets("a_gem", True, None, ["1", [{"role": "user", "content": "1"}]]) == {"protected": []}
    assert held_out_set(None) == {} and held_out_set([1]) == {"held_out": [1]}


@pytest.mark.parametrize(
    ("data", "words"), [([], "protect_eval_dataset= is empty"), ({"a": [1]}, "takes one dataset; join several")]
)
def test_wrong_held_out_data_are_refused_by_name(data: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        held_out_set(data)


def test_settings_that_a_sum_of_losses_does_not_use_are_refused() -> None:
    check_guide("kl", {"primary_weight": 0.5})
    with pytest.raises(ValueError, match=r"'refresh_every', which has no effect with guard='replay'"):
        check_guide("replay", {"refresh_every": 5})


def trainer(*, model: Any = None, padding_free: bool = False, **args: Any) -> Any:
    return SimpleNamespace(
        model=model or torch.nn.Linear(1, 1), args=SimpleNamespace(**args), padding_free=padding_free
    )


def test_models_whose_outputs_do_not_fit_their_labels_are_refused() -> None:
    check_model(trainer(), ["protected"])
    translator = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True))
    prompted = SimpleNamespace(active_peft_config=SimpleNamespace(is_prompt_learning=True))
    for refused, words in (
        (trainer(model=translator), "an encoder-decoder model"),
        (trainer(model=prompted), "LoraConfig"),
        (trainer(precompute_ref_log_probs=True), "Set it to False, or protect texts"),
    ):
        with pytest.raises(ValueError, match=words):
            check_model(refused, ["protected"])
    check_model(trainer(precompute_ref_log_probs=True), [])


@pytest.mark.parametrize("packing", [False, True])
def test_single_examples_do_not_share_a_row(packing: bool) -> None:
    packed = trainer(padding_free=True, packing=packing)
    name = "packing" if packing else "padding_free"
    with pytest.raises(ValueError, match=rf"guard='orthograd' needs .* Set {name}=False, or pass a protect_collator="):
        check_single("orthograd", packed, ["protected"])
    check_single("orthograd", packed, [])  # it has a collator of its own


def test_a_batch_without_a_token_that_counts_is_refused() -> None:
    def collate(rows: list[list[int]]) -> dict[str, torch.Tensor]:
        return {"labels": torch.tensor(rows)}

    rows = [[3, -100, -100], [-100, -100, -100]]
    assert len(CheckedCollator(collate, "protect_dataset=", 0)(rows)["labels"]) == 2
    assert len(CheckedCollator(collate, "protect_dataset=", None)(rows)["labels"]) == 2
    with pytest.raises(ValueError, match="protect_dataset=: a batch has no token that counts"):
        CheckedCollator(collate, "protect_dataset=", 1)(rows)  # no position predicts a first token


def test_an_error_of_a_collator_names_the_argument() -> None:
    def fail(_: Any) -> Any:
        raise KeyError("input_ids")

    with pytest.raises(
        ValueError, match=r"protect_dataset=: the collator .*KeyError: 'input_ids'.* columns of train_dataset"
    ):
        CheckedCollator(fail, "protect_dataset=", 1)([])
