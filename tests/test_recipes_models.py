"""Networks by name: their shapes, their number of parameters, what they start from and what they refuse."""

import json
import os
import pickle
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, Order, Task, per_example_losses
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model, statistics
from attittud_lab.models.text import HashedWords
from attittud_lab.training.train import load_data, run


def images(channels: int = 3, size: int = 16, classes: int = 2, others: int = 8) -> Prepared:
    """A handful of random images for two tasks."""

    def task(name: str, count: int) -> Task:
        inputs = torch.randint(256, (6, channels, size, size), dtype=torch.uint8)
        return Task(name, "classify", [str(c) for c in range(count)], Examples(inputs, torch.arange(6) % count))

    primary = task("primary", classes)
    return Prepared("image", primary, primary.examples, primary.examples, {"other": task("other", others)})


def model_config(text: str) -> Config:
    return loads(f"model: {text}")


@pytest.mark.parametrize("name", ["mlp", "small-cnn", "resnet-18", "wideresnet-10-1", "wideresnet-16-2"])
def test_image_models(name: str) -> None:
    data = images()
    model = build_model(model_config(name).model, data, 0)
    for task in (data.primary, *data.auxiliary.values()):
        losses = per_example_losses(model, task, *task.examples.take(torch.arange(4)))
        assert losses.shape == (4,) and losses.isfinite().all()
        losses.mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # Only the head learns when its features are detached.
    model.zero_grad()
    inputs, targets = data.primary.examples.take(torch.arange(4))
    per_example_losses(model, data.primary, inputs, targets, detach=True).mean().backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == {
        "heads.primary.weight",
        "heads.primary.bias",
    }


def test_wide_residual_network_is_the_papers() -> None:
    model = build_model(model_config("wideresnet-22-4").model, images(size=32), 0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(4.299e6, abs=500)
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in model.modules()) == 1 + 3 * 3 * 2
    stem = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    assert float(stem.weight.detach().std()) == pytest.approx((2 / (16 * 9)) ** 0.5, rel=0.2)  # Kaiming, fan-out


def test_initial_weights_depend_on_the_seed_alone() -> None:
    data, config = images(), model_config("{name: small-cnn, width: 8}").model
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (build_model(config, data, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["heads.primary.weight"], other["heads.primary.weight"])


@pytest.mark.parametrize(("init", "std"), [("kaiming", 1.0), ("zero", 0.0)])
def test_head_init(init: str, std: float) -> None:
    model = build_model(model_config(f"{{name: small-cnn, width: 256, head_init: {init}}}").model, images(), 0)
    head = model.heads["primary"]
    assert isinstance(head, nn.Linear)
    # Fan-out of 2 classes: the standard deviation of 1.0 that the paper's release has.
    assert float(head.weight.detach().std()) == pytest.approx(std, abs=0.1)


def test_normalisation() -> None:
    pixels = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8)
    mean, std = statistics(pixels)
    torch.testing.assert_close(mean, (pixels / 255).mean((0, 2, 3)))
    torch.testing.assert_close(std, (pixels / 255).std((0, 2, 3), correction=0))
    assert statistics(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))[1] > 0
    data = images()
    more = torch.randint(100, (9, 3, 16, 16), dtype=torch.uint8)
    data.auxiliary["other"].examples = Examples(more, torch.arange(9) % 8)
    network = build_model(model_config("{name: mlp, width: 8}").model, data, 0)
    torch.testing.assert_close(network.mean.flatten(), statistics(more)[0])  # of the larger set


def test_body_from_an_earlier_run(tmp_path: Path) -> None:
    data, config = images(), model_config("{name: mlp, width: 8}").model
    source = build_model(config, data, 1)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    model = build_model(model_config(f"{{name: mlp, width: 8, weights: {tmp_path}/w.safetensors}}").model, data, 2)
    assert torch.equal(model.body.layers[1].weight, source.body.layers[1].weight)
    assert not torch.equal(model.heads["primary"].weight, source.heads["primary"].weight)
    with pytest.raises(InputError, match=r"model.weights: .* this model needs"):
        build_model(model_config(f"{{name: mlp, width: 9, weights: {tmp_path}/w.safetensors}}").model, data, 2)
    (tmp_path / "p.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'echo'\ntR.")
    header = b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}'
    (tmp_path / "q.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"0000")
    for path in (tmp_path / "p.safetensors", tmp_path / "q.safetensors", tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="cannot read these weights"):
            build_model(model_config(f"{{name: mlp, weights: {path}}}").model, data, 2)


def test_every_seed_starts_from_its_own_weights_with_the_heads_it_shares(tmp_path: Path) -> None:
    data, config = images(), model_config("{name: mlp, width: 8}").model
    sources = {seed: build_model(config, data, 10 + seed) for seed in (0, 1)}
    for seed, source in sources.items():
        save_file(source.state_dict(), tmp_path / f"{seed}.safetensors")
    job = model_config(f'{{name: mlp, width: 8, weights: "{tmp_path}/{{seed}}.safetensors"}}').model
    for seed, source in sources.items():
        model, wanted = build_model(job, data, seed).state_dict(), source.state_dict()
        assert torch.equal(model["body.layers.1.weight"], wanted["body.layers.1.weight"])
        assert torch.equal(model["heads.other.weight"], wanted["heads.other.weight"])
        assert not torch.equal(model["heads.primary.weight"], wanted["heads.primary.weight"])
    data.auxiliary["other"] = replace(data.primary, name="other", classes=["a", "b", "c", "d", "e"])
    assert build_model(job, data, 0).heads["other"].weight.shape == (5, 8)  # another task: a head of its own


@pytest.mark.parametrize("name", ["mlp", "small-cnn", "resnet-18"])
def test_a_network_that_memory_cannot_hold_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is allocated, and with the width that fits."""
    monkeypatch.setattr("attittud_lab.models.network.free_memory", lambda: 20 * 50_000)
    for width in (10**7, 10**12):
        config = model_config(f"{{name: {name}, width: 64}}").model
        with pytest.raises(InputError, match=r"parameters, .* enough to train about 5e\+04") as caught:
            build_model(replace(config, width=width), images(), 0)
    if name == "resnet-18":
        assert "choose a smaller model" in str(caught.value)
        return
    fits = int(str(caught.value).rpartition(" ")[2])
    assert f"lower model.width from {width} to at most {fits}" in str(caught.value)
    body = build_model(replace(config, width=fits), images(), 0).body
    assert 40_000 < sum(parameter.numel() for parameter in body.parameters()) <= 50_000
    with pytest.raises(InputError, match=f"at most {fits}"):
        build_model(replace(config, width=fits + 1), images(), 0)


class Payload:
    """Pickled, it makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_timm_unpickles_nothing_but_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some of its versions ask `torch.load` for everything."""
    torch.save({"a": Payload(tmp_path / "ran")}, tmp_path / "weights.bin")

    def create_model(*_: Any, **__: Any) -> nn.Module:
        torch.load(tmp_path / "weights.bin", weights_only=False)
        return WithNeck(3)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    before = dict(os.environ)
    with pytest.raises(InputError, match="timm:with_neck cannot be built"):
        build_model(model_config("'timm:with_neck'").model, images(), 0)
    assert not (tmp_path / "ran").exists() and dict(os.environ) == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("planted", ["weights", "adapter", "code", "tokenizer"])
def test_nothing_that_comes_with_a_hugging_face_folder_is_run(planted: str, tmp_path: Path) -> None:
    folder, ran = tmp_path / "bert", tmp_path / "ran"
    folder.mkdir()
    hugging_face_text(folder)
    payload = pickle.dumps(Payload(ran))
    code = f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nclass Mine: pass\n"
    if planted == "weights":
        (folder / "model.safetensors").unlink()
        torch.save(Payload(ran), folder / "pytorch_model.bin")
    elif planted == "adapter":
        settings = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "target_modules": ["query"], "r": 1}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        torch.save(Payload(ran), folder / "adapter_model.bin")
    elif planted == "code":
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "mine.Mine")
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
        (folder / "mine.py").write_text(code)
    else:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config |= {"auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}, "tokenizer_class": "Mine"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "mine.py").write_text(code)
    for name in ("vocab.pkl", "optimizer.pt", "scheduler.pt", "training_args.bin", "spiece.model"):
        (folder / name).write_bytes(payload)
    job = text_job(tmp_path, f"hf:{folder}")
    with suppress(InputError):
        build_model(job.model, load_data(job), 0)
    assert not ran.exists()


def test_unknown_models() -> None:
    for name, message in {
        "smal-cnn": r"Did you mean 'small-cnn'\?",
        "wideresnet-20-4": "the depth must be 6n",
        "wideresnet-10-0": "the width at least 1",
        "text-cnn": "reads texts, but the data are images",
        "hf:nowhere": r"attittud\[transformers\]|cannot be loaded",
        "timm:nonsense_9": r"attittud\[timm\]|cannot be built",
    }.items():
        with pytest.raises(InputError, match=message):
            build_model(model_config(name).model, images(), 0)


class WithNeck(nn.Module):
    """What timm's MobileNetV3 and VGG do: the output without a classifier is wider than `num_features`."""

    num_features = 5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.neck = nn.Conv2d(channels, 5, 3), nn.Linear(5, 9)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[2] == 16, f"Input height ({x.shape[2]}) doesn't match model (16)."
        return self.neck(self.conv(x).mean((2, 3)))


def test_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package, which needs torchvision; `create_model` has the arguments of timm 1.0."""
    asked: list[dict[str, Any]] = []

    def create_model(model_name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
        asked.append({"name": model_name, "pretrained": pretrained, **arguments})
        if model_name != "with_neck":
            raise RuntimeError(f"Unknown model ({model_name})")
        return WithNeck(arguments["in_chans"])

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    data = images(channels=1)
    model = build_model(model_config("{name: 'timm:with_neck', pretrained: false, dropout: 0.1}").model, data, 0)
    assert asked == [{"name": "with_neck", "pretrained": False, "num_classes": 0, "in_chans": 1, "drop_rate": 0.1}]
    assert model.training and model.heads["primary"].in_features == 9
    inputs, targets = data.primary.examples.take(torch.arange(4))
    assert per_example_losses(model, data.primary, inputs, targets).shape == (4,)
    with pytest.raises(InputError, match=r"Unknown model \(other\)\); check the name"):
        build_model(model_config("'timm:other'").model, data, 0)
    with pytest.raises(InputError, match=r"images of size 3x8x8 .*doesn't match model \(16\).*data\.image_size"):
        build_model(model_config("'timm:with_neck'").model, images(size=8), 0)


def test_timm_with_the_wrong_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        InputError, match=r"cannot be imported \(operator torchvision::nms.*the torchvision that belongs"
    ):
        build_model(model_config("'timm:resnet10t'").model, images(), 0)


# ------------------------------------------------------------------------------------------------ texts

TEXTS = ["a good film", "a bad film, really", "good good good", "what a bad, bad, bad story"] * 6


def text_job(folder: Path, model: str) -> Config:
    rows = [
        json.dumps({"text": f"{text} {n}", "label": "bad" if "bad" in text else "good"}) for n, text in enumerate(TEXTS)
    ]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    more = [json.dumps({"text": f"{text} again {n}"}) for n, text in enumerate(TEXTS)]
    (folder / "more.jsonl").write_text("\n".join(more))
    return loads(
        f"""
        data:
          primary: {{path: {folder}/texts.jsonl}}
          auxiliary: {{lm: {{path: {folder}/more.jsonl, objective: masked_lm}}}}
          max_length: 12
        model: {{name: "{model}", width: 8}}
        training:
          guided: {{steps: 3, evaluations: 1, primary_batch: 4, batch_size: 4}}
          finetune: {{steps: 2, evaluations: 1, primary_batch: 4}}
        strategy: {{name: flip, rank: 2, refresh_every: 2}}
        """
    )


def test_hashing_tokenizer() -> None:
    tokens, lengths = Reader(HashedWords(), 6, pack=False).rows(["A good, GOOD film", "", "x " * 100])
    assert lengths.tolist() == [5, 0, 6]
    assert tokens.shape == (3, 6) and tokens.dtype == torch.int32
    assert tokens[0, 1] == tokens[0, 3] and tokens[0, 5] == 0 and not tokens[1].any() and (tokens[2] > 1).all()


def test_text_model(tmp_path: Path) -> None:
    result = run(text_job(tmp_path, "text-cnn"), run_dir=tmp_path / "run")
    assert result.examples["auxiliary/lm"] == 24 and 0 <= result.test["accuracy"] <= 1


def hugging_face_text(folder: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "good",
        "bad",
        "film",
        "story",
        ",",
        "what",
        "really",
        "again",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    settings: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=32, **settings)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hugging_face_text_model(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    hugging_face_text(folder)
    job = text_job(tmp_path, f"hf:{folder}")
    data = load_data(job)
    model = build_model(job.model, data, 0)
    stored = torch.nn.Module.state_dict(model)
    from safetensors.torch import load_file

    original = load_file(folder / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(stored[f"body.model.{name}"], original[f"bert.{name}"])
    assert data.primary.examples.inputs[0, 0] == 2  # [CLS]
    result = run(job, run_dir=tmp_path / "run", data=data)
    assert 0 <= result.test["macro_f1"] <= 1
    longer = replace(job, data=replace(job.data, max_length=64))
    with pytest.raises(InputError, match=r"cannot read texts of size 6\d .*data\.max_length"):
        build_model(job.model, load_data(longer), 0)
    for name in ("tokenizer.json", "vocab.txt"):  # without them transformers makes a tokenizer that knows no words
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(InputError, match="its tokenizer cannot be loaded"):
        load_data(job)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")  # pickles are not opened
    with pytest.raises(InputError, match="the network cannot be loaded"):
        build_model(job.model, data, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hugging_face_image_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    settings: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.ViTConfig(image_size=16, patch_size=8, **settings)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    for channels in (3, 1):  # grey pictures too
        data = images(channels)
        model = build_model(model_config(f"'hf:{tmp_path}'").model, data, 0)
        inputs, targets = data.primary.examples.take(torch.arange(4))
        assert per_example_losses(model, data.primary, inputs, targets).shape == (4,)
    with pytest.raises(InputError, match=r"cannot read images of size 3x24x24 .*data\.image_size"):
        build_model(model_config(f"'hf:{tmp_path}'").model, images(size=24), 0)


def test_a_name_is_taken_from_the_cache_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    hub = pytest.importorskip("huggingface_hub", reason="comes with transformers")
    folder = tmp_path / "models--owner--net"
    settings: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(image_size=16, patch_size=8, intermediate_size=8, **settings)
    transformers.ViTForImageClassification(config).save_pretrained(folder / "snapshots" / ("b" * 40))
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("b" * 40)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the network was asked"))
    build_model(model_config("'hf:owner/net'").model, images(), 0)
    with pytest.raises(
        InputError, match=r"no such folder here and nothing of this name in the cache; .*: hf download owner/other"
    ):
        build_model(model_config("'hf:owner/other'").model, images(), 0)


# ------------------------------------------------------------------------------------------------ order


def test_order_visits_everything_once_in_an_epoch() -> None:
    order = Order(10, 3, "s")
    walk = torch.cat([order.batch(step, 4) for step in range(5)]).tolist()
    assert sorted(walk[:10]) == sorted(walk[10:]) == list(range(10)) and walk[:10] != walk[10:]
    assert Order(10, 3, "s").batch(3, 4).tolist() == walk[12:16]  # entered anywhere
    assert Order(10, 3, "t").batch(0, 10).tolist() != walk[:10]
    assert len(Order(3, 0, "s").batch(1, 8)) == 8
