"""A language model learns new data: its run folder, a run that was killed, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'transformers'")
pytest.importorskip("accelerate", reason="needs the extra 'transformers'")

import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from attittud.integrations.guard import PLAIN
from attittud.integrations.protected import Forgetting
from attittud_lab.commands import known_names
from attittud_lab.errors import InputError
from attittud_lab.language.learner import Learner
from attittud_lab.language.run import _Job, decide, run, run_dir_of
from attittud_lab.output.progress import Progress
from attittud_lab.runs.folder import RunFolder
from attittud_lab.runs.model import read_model
from tests.helpers.language import WORDS, job, make_files, save_lines, save_model
from tests.helpers.trainers import WARNINGS

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_files()


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in line.items() if name != "seconds"} for line in found]


def test_a_run_leaves_its_files() -> None:
    result = run(job(), Path("run"))
    learned = json.loads(Path("run/learned.json").read_text())
    assert result.metric == "forgetting" and result.validation == learned["end"] and result.steps == 12
    assert result.examples == {"train": 52, "validation": 8, "protected": 24, "protected_validation": 6}
    assert learned["end"]["loss"] < learned["start"]["loss"] and learned["start"]["forgetting"] == 0
    first, last = learned["averages"][0], learned["averages"][-1]
    assert first == {"share": 0.0, **learned["start"]} and last == {"share": 1.0, **learned["end"]}
    measured = [line for line in lines(Path("run")) if "validation/forgetting" in line]
    assert [line["step"] for line in measured] == [0, 4, 8, 12]
    assert AutoModelForCausalLM.from_pretrained("run/model").num_parameters() == result.parameters
    assert not Path("run/checkpoints").exists() and not list(Path("run").rglob("*.bin"))
    assert run(job(), Path("run")).skipped
    with pytest.raises(InputError, match=r"holds a run with another configuration \(language.lr"):
        run(job("language.lr=1e-3"), Path("run"))
    with pytest.raises(InputError, match="language model, which writes texts and has no classes"):
        read_model(Path("run"))


@pytest.mark.parametrize("more", [(), ("language.guard=ogpsa", "language.refresh_every=3", "language.lora=2")])
def test_a_killed_run_ends_with_the_same_result(monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    if more:
        pytest.importorskip("peft")
    run(job(*more), Path("whole"))
    usual = Learner.training_step

    def killed(self: Any, *args: Any) -> Any:
        if self.state.global_step == 10:
            raise KeyboardInterrupt
        return usual(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "training_step", killed)
        with pytest.raises(KeyboardInterrupt):
            run(job(*more), Path("killed"))
    # A second kill, while a checkpoint was being written.
    half = Path("killed/checkpoints/checkpoint-12")
    half.mkdir()
    assert {path.name for path in half.parent.iterdir()} == {"checkpoint-4", "checkpoint-8", "checkpoint-12"}
    resumed = run(job(*more), Path("killed"))
    assert resumed.steps == 12 and lines(Path("killed")) == lines(Path("whole"))
    name = "adapter_model.safetensors" if more else "model.safetensors"
    whole, killed_too = (load_file(Path(folder, "model", name)) for folder in ("whole", "killed"))
    assert all(torch.equal(whole[key], killed_too[key]) for key in whole)
    assert json.loads(Path("killed/learned.json").read_text()) == json.loads(Path("whole/learned.json").read_text())


def test_a_run_killed_after_its_last_step_does_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    run(job(), Path("whole"))
    with monkeypatch.context() as patched:
        patched.setattr(Forgetting, "curve", killed)
        with pytest.raises(KeyboardInterrupt):
            run(job(), Path("killed"))
    assert Path("killed/checkpoints/checkpoint-12").is_dir()
    assert run(job(), Path("killed")).steps == 12 and lines(Path("killed")) == lines(Path("whole"))
    for name in ("learned.json", "model/model.safetensors"):
        assert Path("killed", name).read_bytes() == Path("whole", name).read_bytes()


def test_adapters_without_their_model_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run(job("language.lora=2", "language.steps=1"), Path("run"))
    with pytest.raises(InputError, match="model hf:run/model: holds only adapters of another model; give the folder"):
        run(job("model=hf:run/model"), Path("other"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    AutoModelForCausalLM.from_pretrained("../run/model")


def test_the_model_writes_the_replies_to_prompts() -> None:
    save_model(Path("tiny"), chat=True)
    save_lines("prompts.jsonl", [{"prompt": str(number)} for number in range(10)])
    prompted = ("language.protect=null", "language.protect_prompts=prompts.jsonl", "language.reply_tokens=4")
    result = run(job(*prompted, "language.guard=kl", "language.steps=2"), Path("run"))
    found = [json.loads(line) for line in Path("run/replies.jsonl").read_text().splitlines()]
    assert result.examples["protected"] == 8 and result.examples["protected_validation"] == 2 and len(found) == 10
    assert all(
        len([x for x in line["labels"] if x >= 0]) <= 4 and line["prompt"][0]["role"] == "user" for line in found
    )
    assert "forgetting" in result.validation


@pytest.mark.parametrize(
    "settings",
    [
        ("language.guard=kl", "language.lora=2", "language.gradient_checkpointing=true"),
        ("language.guard=orthograd", "language.precision=bf16"),
        ("language.guard=gu", "language.accumulate=2", "language.schedule=cosine", "language.warmup=2"),
    ],
)
def test_settings_work_together(settings: tuple[str, ...]) -> None:
    if "language.lora=2" in settings:
        pytest.importorskip("peft")
    run(job(*settings, "language.steps=4"), Path("run"))
    learned = json.loads(Path("run/learned.json").read_text())
    assert learned["end"]["loss"] < learned["start"]["loss"] and len(learned["averages"]) == 5


def test_a_run_without_protected_data_says_so() -> None:
    result = run(job("language.protect=null", "language.guard=none", "language.steps=3"), Path("run"))
    assert result.metric == "loss" and set(result.validation) == {"loss"}
    decision = json.loads(Path("run/learned.json").read_text())["decision"]
    assert decision["outcome"] == "unclear" and "What it forgot is not known" in decision["text"]


@pytest.mark.parametrize("every", [2, 1000])
def test_a_loss_that_is_not_finite_ends_the_run(every: int) -> None:
    with pytest.raises(InputError, match=r"language\.lr: the loss is no longer a finite number at step \d+; lower"):
        run(job("language.lr=1e20", "language.guard=none", "language.clip=null", f"log_every={every}"), Path("run"))


def test_damaged_weights_are_not_blamed_on_the_learning_rate() -> None:
    model = AutoModelForCausalLM.from_pretrained("tiny")
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    model.save_pretrained("tiny")
    with pytest.raises(InputError, match="its loss is not a finite number before training"):
        run(job("language.guard=none"), Path("run"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("language.max_length=1024",), "the model reads 512 tokens at most"),
        (("device=meta",), "device: "),
        (("language.learn=old.jsonl", "language.validation=30"), "leave 0 for training"),
        (("model=hf:nowhere",), "there is no such folder, and nothing"),
    ],
)
def test_refusals_leave_no_run(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(job(*settings), Path("run"))
    assert not Path("run/run.json").exists()


def test_lora_without_peft_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        InputError, match=r"language\.lora: needs the package 'peft'.* pip install peft, or .* lora: null"
    ):
        run(job("language.lora=2"), Path("run"))


def test_a_tokenizer_of_another_model_is_refused() -> None:
    save_lines("new.jsonl", [{"text": f"{number % 20} 19"} for number in range(60)])
    config = json.loads(Path("tiny/tokenizer.json").read_text())
    config["model"]["vocab"]["19"] = 99
    Path("tiny/tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="has the token 99, but its network knows only 24"):
        run(job(), Path("run"))


def test_encoders_and_classifiers_are_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained("tiny")
    with pytest.raises(InputError, match="it sees the tokens that it has to predict, as encoders such as BERT do"):
        run(job(), Path("run"))
    config = transformers.LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, **sizes)
    transformers.LlamaForSequenceClassification(config).save_pretrained("tiny")
    with pytest.raises(InputError, match=r"model hf:tiny: .*its file lacks the weights lm_head\.weight"):
        run(job(), Path("run"))


def test_examples_held_out_from_one_file_are_not_trained_on_in_the_other() -> None:
    save_lines("new.jsonl", [{"text": f"{i % 20} {i // 20}"} for i in range(60)])
    save_lines("old.jsonl", [{"text": f" {i % 20}  {i // 20}"} for i in range(40)])  # the same tokens
    made = _Job(job(), RunFolder(Path("run"), job()), torch.device("cpu"), Progress())
    found = {name: {tuple(row["input_ids"]) for row in rows} for name, rows in made.rows.items()}
    measured = found["validation"] | found["protected_validation"]
    assert not measured & (found["train"] | found["protected"]) and len(found["protected_validation"]) == 8
    assert len(found["train"] | measured) == 60


def test_protected_examples_that_are_also_learned_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    data = {
        "new.jsonl": [f"{i % 20} {i // 20}" for i in range(60)],
        "old.jsonl": [f"{i % 20} {i // 5}" for i in range(20)],
    }
    for protected, warned in (("new.jsonl", True), ("old.jsonl", False)):
        for path, texts in data.items():
            save_lines(path, [{"text": f"{words} {1 if path == 'old.jsonl' else 2}"} for words in texts])
        wanted = job(f"language.protect={protected}")
        made = _Job(wanted, RunFolder(Path("run"), wanted), torch.device("cpu"), Progress())
        many = len(made.rows["protected"])
        said = (
            f"language.protect: {many} of {many} protected rows are also learned (language.learn), so forgetting looks"
        )
        assert (said in caplog.text) == warned
        caplog.clear()


def test_prompts_without_room_for_a_reply_and_replies_of_another_model_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=16, n_layer=1, n_head=2, eos_token_id=1
    )
    transformers.GPT2LMHeadModel(config).save_pretrained("tiny")
    save_lines("prompts.jsonl", [{"prompt": " ".join(["1"] * (10 + number))} for number in range(9)])
    prompted = ("language.protect=null", "language.protect_prompts=prompts.jsonl", "language.max_length=16")
    Path("run").mkdir()
    stale = {"part": "protected", "prompt": "1", "reply": "", "input_ids": [1], "labels": [1]}
    save_lines("run/replies.jsonl", [stale])
    run(job(*prompted, "language.steps=1"), Path("run"))
    found = [json.loads(line) for line in Path("run/replies.jsonl").read_text().splitlines()]
    assert len(found) == 6 and max(len(line["input_ids"]) for line in found) <= 16 and stale not in found
    assert "3 of 9 prompts leave no room for a reply within language.max_length 16" in caplog.text


def test_one_protected_example_is_enough_and_the_decision_says_how_few_measure() -> None:
    save_lines("old.jsonl", [{"text": "1 2 3"}, {"text": "2 3 4"}])
    run(job("language.guard=orthograd", "language.steps=2"), Path("run"))
    text = json.loads(Path("run/learned.json").read_text())["decision"]["text"]
    assert "on 8 held-out examples of new data" in text and "on 1 held-out example of protected data" in text
    assert "So few examples prove little: hold out 10 or more" in text


START = {"loss": 3.0, "forgetting": 0.0}


@pytest.mark.parametrize(
    ("end", "outcome", "words"),
    [
        ({"loss": 3.0, "forgetting": 0.0}, "no_help", "Nothing was learned"),
        ({"loss": 2.0, "forgetting": 0.05}, "use", "Use the trained model"),
        (
            {"loss": 2.0, "forgetting": 0.5},
            "unclear",
            "in which the trained weights count 50%, forgets little enough: loss 2.500",
        ),
        ({"loss": 2.0, "forgetting": 9.0}, "unclear", "Try a lower learning rate"),
    ],
)
def test_decisions_follow_from_the_results(end: dict[str, float], outcome: str, words: str) -> None:
    middle = {"share": 0.5, "loss": 2.5, "forgetting": 0.1 * end["forgetting"]}
    averages = [{"share": 0.0, **START}, middle, {"share": 1.0, **end}]
    found = decide(
        {"start": START, "end": end, "averages": averages}, 0.05, {"validation": 9, "protected_validation": 10}
    )
    assert "So few examples" not in found["text"]
    assert found["outcome"] == outcome and words in found["text"]


def test_every_guard_has_a_name_in_configurations() -> None:
    check = known_names()["guard"]
    for name in PLAIN:
        check(name)
    with pytest.raises(InputError, match=r"unknown guard 'agem'.* Did you mean 'a_gem'"):
        check("agem")
    assert run_dir_of(job(), "mine") == Path("runs/mine/a_gem/seed-0")
