"""A trained model in Python: the figures of training, from any form of input."""

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import attittud_lab
from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.data.rows import content
from attittud_lab.errors import InputError
from attittud_lab.predict.model import Model
from attittud_lab.runs.model import ModelFile
from attittud_lab.training.evaluate import fitted_temperature
from attittud_lab.training.train import load_data
from tests.helpers.commands import call
from tests.helpers.data_files import read_rows
from tests.helpers.predictions import JOBS, reseal, rows_of_test, train, workplace
from tests.helpers.simple_jobs import text_job
from tests.helpers.texts import tiny_encoder

# of tokenizers and transformers
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all runs are trained."""
    folder = workplace(tmp_path_factory.mktemp("predict"))
    with chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def runs(here: Path) -> dict[str, Path]:
    pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    assert Path.cwd().samefile(here)
    return {name: train(name) for name in JOBS}


TABLES = {
    "words": ("data/reviews.csv", "text", "label"),
    "texts": ("data/reviews.csv", "text", "label"),
    "findings": ("data/findings.parquet", "image", "labels"),
    "labels": ("data/labels.jsonl", "text", "tags"),
}


def examples(name: str, run: Path) -> tuple[list[Any], list[Any]]:
    """The test examples of a run as a Python user has them, and their labels."""
    if name == "pictures":
        paths = sorted(Path("data/pictures/test").rglob("*.png"))
        return paths, [path.parent.name for path in paths]
    path, column, label = TABLES[name]
    rows = [row for row in read_rows(Path(path)) if row.get("view", "front") == "front"]
    chosen = [rows[number] for number in rows_of_test(run) or range(len(rows))]
    return [content(row[column]) for row in chosen], [row[label] for row in chosen]


def accuracy(model: Model, labels: list[Any], wanted: list[Any]) -> float:
    if not model.several:
        return sum(map(str.__eq__, labels, wanted)) / len(wanted)
    rows = [[int(name in found) for name in model.classes] for found in labels]
    return float((np.array(rows) == np.array(wanted)).mean())


@pytest.mark.parametrize("name", JOBS)
def test_predictions_of_the_test_examples_have_the_figures_of_the_run(runs, name):
    run = runs[name]
    model = attittud_lab.load(run)
    inputs, wanted = examples(name, run)
    figures = json.loads((run / "result.json").read_text())["test"]
    assert len(inputs) == len(wanted) > 5
    found = accuracy(model, model.predict(inputs), wanted)
    assert found == pytest.approx(figures["accuracy"], abs=1e-6)
    likely = model.predict_proba(inputs)
    assert likely.shape == (len(inputs), len(model.classes)) and likely.dtype == np.float32
    given = inputs if model.about.kind == "text" else model._raws(inputs)
    scores = model.scores(model.batch(given, ["x"] * len(inputs)))
    if model.several:
        loss = F.binary_cross_entropy_with_logits(scores, torch.tensor(wanted).float())
    else:
        classes = torch.tensor([model.classes.index(label) for label in wanted])
        loss = F.cross_entropy(scores, classes)
        assert likely.sum(1) == pytest.approx(1, abs=1e-5)
    assert float(loss) == pytest.approx(figures["loss"], rel=1e-5)
    assert model.note is None and model.about.calibrated_on > 0


@pytest.mark.usefixtures("here")
def test_probabilities_are_calibrated(tmp_path):
    """A network that knows its training examples by heart is too sure."""
    Path("sure.yaml").write_text(
        "data: {primary: {path: digits, train: 100, validation: 100, test: 500}}\n"
        "model: {name: mlp, width: 64}\nstrategy: primary_only\nlog_layers: false\n"
        "training: {mode: joint, guided: {steps: 300, lr: 3e-3, evaluations: 1}}\n"
    )
    assert call("train", "sure.yaml", f"output={tmp_path}", "--quiet") == 0
    (result,) = tmp_path.rglob("result.json")
    model = attittud_lab.load(result.parent)
    data = load_data(load("sure.yaml"))
    likely = model.predict_proba(data.test.inputs.numpy())
    classes = data.test.targets.numpy()
    right = likely.argmax(1) == classes
    loss = -np.log(likely[np.arange(len(classes)), classes]).mean()
    assert model.module.temperature > 1
    assert loss < json.loads(result.read_text())["test"]["loss"]
    assert likely.max(1).mean() == pytest.approx(right.mean(), abs=0.05)
    scores = torch.from_numpy(model.predict_proba(data.validation.inputs.numpy())).log()
    assert fitted_temperature(scores, data.validation.targets) == pytest.approx(1, abs=1e-3)


def test_a_run_needs_neither_its_data_nor_its_encoder(runs, tmp_path, monkeypatch):
    texts = ["it was great", "awful plot", ""]
    before = attittud_lab.load(runs["texts"]).predict_proba(texts)
    moved = shutil.copytree(runs["texts"], tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert (attittud_lab.load(moved).predict_proba(texts) == before).all()


def test_images_in_all_forms_give_the_same_predictions(runs):
    model = attittud_lab.load(runs["pictures"])
    paths = sorted(Path("data/pictures/test").rglob("*.png"))
    wanted = model.predict_proba(paths)
    images = list(map(Image.open, paths))
    grey = np.stack([np.asarray(image.convert("L")) for image in images])
    names = list(map(str, paths))
    forms: list[Any] = [names, np.array(names), list(map(Path.read_bytes, paths)), images]
    forms += [grey, grey[..., None], grey[:, None], torch.from_numpy(grey[:, None]), list(grey)]
    for inputs in forms:
        assert (model.predict_proba(inputs) == wanted).all()
    assert (model.module(torch.from_numpy(grey[:, None])).numpy() == wanted).all()
    assert model.predict(paths[0]) == model.predict(paths)[:1]
    assert len(model.predict([])) == len(model.predict_proba([])) == 0
    # larger, and of three channels
    colour = np.repeat(np.kron(grey, np.ones((3, 3), dtype=np.uint8))[..., None], 3, 3)
    assert model.predict_proba(colour) == pytest.approx(wanted, abs=0.2)


def test_members_are_averaged(runs, tmp_path):
    """With the shares in model.json, which need not add up to 1."""
    paths = sorted(Path("data/pictures/test").rglob("*.png"))
    run = shutil.copytree(runs["pictures"], tmp_path / "run")
    weights = load_file(run / "weights.safetensors")
    for name in weights:
        if "heads.primary" in name:
            weights[name] += 0.1 * torch.randn_like(weights[name])
    save_file(weights, run / "second.safetensors")
    about = json.loads((run / "model.json").read_text())

    def likely(**shares: float) -> np.ndarray:
        about["members"] = [
            {"kind": "network", "weights": f"{name}.safetensors", "share": share}
            for name, share in shares.items()
        ]
        (run / "model.json").write_text(json.dumps(about | {"temperature": None}))
        reseal(run)
        return attittud_lab.load(run).predict_proba(paths)

    first, second = likely(weights=1.0), likely(second=1.0)
    assert np.abs(first - second).max() > 1e-4
    both = likely(weights=3.0, second=1.0)
    assert both == pytest.approx(0.75 * first + 0.25 * second, abs=1e-6)
    assert len(attittud_lab.load(run).module.members) == 2


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("owned",)


@pytest.fixture
def hostile(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run = shutil.copytree(runs["texts"], tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return run


def test_weights_are_never_unpickled(hostile):
    torch.save(Payload(), hostile / "saved.pt")
    for pickled in (pickle.dumps(Payload()), (hostile / "saved.pt").read_bytes()):
        (hostile / "weights.safetensors").write_bytes(pickled)
        reseal(hostile)
        with pytest.raises(InputError, match="cannot read these weights"):
            attittud_lab.load(hostile)
    assert not Path("owned").exists()


@pytest.mark.parametrize("name", ["pictures", "texts"])
def test_an_exported_program_gives_the_same_predictions(runs, name, tmp_path):
    model = attittud_lab.load(runs[name])
    model.classes.reverse()  # the file has the order of the outputs, not of the alphabet
    model.export(tmp_path / "model.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
    kept = {"classes.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=kept).module()
    assert json.loads(kept["classes.json"]) == model.classes
    for count in (1, 5):
        if model.about.kind == "image":
            inputs = torch.randint(0, 256, (count, *model.about.shape), dtype=torch.uint8)
        else:
            inputs = torch.randint(2, 20, (count, model.config.data.max_length), dtype=torch.int32)
        assert torch.allclose(program(inputs), model.module(inputs), atol=1e-6)


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
def test_labels_are_those_with_a_probability_above_the_threshold(threshold):
    classes = [str(number) for number in range(9)]
    about = ModelFile("table", [1], classes, several=True, temperature=2.5)
    model = Model(about, Config(), [], [], {}, None, torch.device("cpu"))
    scores = torch.linspace(-8, 8, 9)[None]
    likely = model.probabilities(scores)[0]
    above = [name for name, share in zip(classes, likely, strict=True) if share > threshold]
    assert 0 < len(above) < 9 and model.labels(scores, threshold) == [above]


def test_the_folder_of_an_encoder_is_read_from_anywhere(tmp_path, monkeypatch):
    """A job names it from the folder where it is trained. It is read where it was, else as it is
    named; if there is another encoder or none, the error names both folders.
    """
    place = tmp_path / "training"
    elsewhere = tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(place)
    tiny_encoder(Path("encoder"))
    Path("job.yaml").write_text(text_job(place))
    assert call("train", "job.yaml", "portfolio.features=[hf:encoder]", "--quiet") == 0
    run = next(place.glob("runs/**/result.json")).parent
    texts = ["a good film", "a bad plot"]
    expected = attittud_lab.load(run).predict(texts)
    monkeypatch.chdir(elsewhere)
    assert attittud_lab.load(run).predict(texts) == expected
    shutil.move(place / "encoder", elsewhere / "encoder")
    assert attittud_lab.load(run).predict(texts) == expected
    (elsewhere / "encoder" / "vocab.txt").write_text("another encoder")
    for _ in range(2):
        with pytest.raises(InputError, match="hf:encoder") as error:
            attittud_lab.load(run)
        assert str(place / "encoder") in str(error.value)
        assert str(elsewhere / "encoder") in str(error.value)
        shutil.rmtree(elsewhere / "encoder", ignore_errors=True)
