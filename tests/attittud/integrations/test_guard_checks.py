"""What a user hands to a guard: each refusal names the argument and the cure."""

import copy
import functools
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attittud.integrations.guard_checks import (
    CheckedCollator,
    check_best,
    check_divergence,
    check_guide,
    check_model,
    check_numbers,
    check_single,
    held_out_set,
    protected_kind,
    protected_sets,
)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weight": "a"}, "protect_weight must be a finite number, got 'a'"),
        ({"weight": -1}, "protect_weight must not be negative, got -1"),
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
    with pytest.raises(ValueError, match=r"'primary_weight', which has no effect with guard='none'"):
        check_guide("none", {"primary_weight": 5})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("none", None, 0.5), "protect_weight= has no effect with guard='none'.* choose another guard"),
        (("none", "kl", None), "protect_loss='kl' has no effect with guard='none'"),
        (("kl", "nll", None), "protect_loss='nll' has no effect with guard='kl'.* choose guard='replay'"),
        (("a_gem", "l2", None), "protect_loss must be 'nll' or 'kl', got 'l2'"),
    ],
)
def test_losses_and_weights_that_a_method_does_not_use_are_refused(given: tuple[str, Any, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        protected_kind(*given)


def test_the_kind_of_the_protected_loss_follows_the_guard() -> None:
    assert {protected_kind(name, None, None) for name in ("none", "replay", "a_gem")} == {"nll"}
    assert {protected_kind("kl", loss, 0.5) for loss in (None, "kl")} | {protected_kind("a_gem", "kl", 1)} == {"kl"}


@pytest.mark.parametrize("name", ["eval_forgetting", "forgetting", "eval_forgetting_protected", "test_forgetting"])
def test_the_checkpoint_that_forgot_most_is_not_the_best(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"metric_for_best_model='{name}' needs greater_is_better=False: less forgetting"
    ):
        check_best(SimpleNamespace(metric_for_best_model=name, greater_is_better=True))
    for usual, greater in ((name, False), ("eval_loss", False), ("eval_accuracy", True), (None, None)):
        check_best(SimpleNamespace(metric_for_best_model=usual, greater_is_better=greater))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)
        return found


def with_head(model: Any) -> Any:
    """Replace `forward` as TRL does: a method with the old one in its closure."""
    before = model.forward

    @functools.wraps(type(model).forward)
    def forward(_: Any, *args: Any) -> Any:
        return before(*args)

    model.forward = types.MethodType(forward, model)
    return model


def in_bf16(model: Any) -> Any:
    """As `Accelerator.prepare` does, for a method and for a plain function."""
    operations = pytest.importorskip("accelerate.utils.operations", reason="needs the extra 'transformers'")
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    bound = hasattr(model.forward, "__func__")
    made = operations.convert_outputs_to_fp32(autocast(model.forward.__func__ if bound else model.forward))
    model.forward = types.MethodType(made, model) if bound else made
    return model


def hooked(model: Any) -> Any:
    hooks = pytest.importorskip("accelerate.hooks", reason="needs the extra 'transformers'")
    hooks.add_hook_to_module(model.inner, hooks.ModelHook())
    return hooks.add_hook_to_module(model, hooks.ModelHook())


def within(model: Any) -> Any:
    return torch.nn.Sequential(model)


def with_teacher(model: Any) -> Any:
    """A model of another class that a replaced forward pass also calls."""
    teacher, before = torch.nn.Linear(1, 1).forward, model.forward
    model.forward = lambda x: before(x) + teacher(x)
    return model


def compiled(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return torch.compile(model, backend="eager")


STEPS = [with_head, in_bf16, hooked, within]


@pytest.mark.parametrize("later", STEPS)
def test_a_copy_that_calls_the_first_model_is_refused(later: Any) -> None:
    made = later(copy.deepcopy(in_bf16(with_head(Model()))))
    for refused in (copy.deepcopy(with_head(Model())), made, copy.deepcopy(in_bf16(hooked(Model())))):
        with pytest.raises(ValueError, match=r"still runs the forward pass of the original, .* with from_pretrained"):
            check_model(trainer(model=refused), ["protected"])


@pytest.mark.parametrize("first", [*STEPS[:3], with_teacher, compiled])
@pytest.mark.parametrize("second", [*STEPS, compiled])
def test_models_with_another_forward_pass_of_their_own_are_taken(first: Any, second: Any) -> None:
    check_model(trainer(model=second(first(Model()))), ["protected"])


def test_copies_of_hooked_models_are_taken() -> None:
    check_model(trainer(model=copy.deepcopy(hooked(Model()))), ["protected"])


def test_the_divergence_is_refused_where_no_token_is_compared() -> None:
    class DPOTrainer(SimpleNamespace):
        pass

    pairs = DPOTrainer(model=Model())
    for guard, words in (
        ("kl", "guard='kl' .* or choose guard='replay', 'a_gem'"),
        ("a_gem", "protect_loss='kl' .* or leave it out"),
    ):
        with pytest.raises(ValueError, match=f"{words}"):
            check_divergence(guard, pairs, ["protected"])
    check_divergence("kl", pairs, ["held_out"])  # what is protected has a collator of its own
    check_divergence("kl", trainer(), ["protected"])


def trainer(*, model: Any = None, padding_free: bool = False, **args: Any) -> Any:
    model = torch.nn.Linear(1, 1) if model is None else model
    return SimpleNamespace(model=model, args=SimpleNamespace(**args), padding_free=padding_free)


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
    check_single("orthograd", packed, ["held_out"])  # what is protected has a collator of its own


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
