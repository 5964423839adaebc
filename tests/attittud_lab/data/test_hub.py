"""`hf:owner/name` through the package `datasets` itself, from a hub on this machine; then again
without it, from the cache.
"""

import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from attittud_lab.data import hub
from attittud_lab.errors import InputError
from tests.helpers.data_sets import encoded, read_configuration
from tests.helpers.processes import command


def test_without_datasets_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"needs the package 'datasets'.*attittud\[hub\]"):
        read_configuration("data: {primary: 'hf:owner/name'}")


def test_data_sets_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}
    )

    def split(count: int, first: int) -> object:
        rows = {
            "img": [{"bytes": encoded(first + n), "path": None} for n in range(count)],
            "label": [n % 2 for n in range(count)],
        }
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(hub, "_answers", lambda _address: True)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda _name: {"train": split(20, 0), "test": split(6, 20)}
    )
    data = read_configuration("data: {primary: {path: 'hf:owner/name', validation: 4}}")
    assert data.primary.classes == ["no", "yes"] and data.primary.examples.inputs.shape == (
        16,
        3,
        8,
        8,
    )
    assert data.test.targets is not None and data.test.targets.tolist() == [0, 1, 0, 1, 0, 1]

    # Without a split called train, all are read.
    monkeypatch.setattr(
        datasets, "load_dataset", lambda _name: {"first": split(20, 0), "second": split(10, 20)}
    )
    data = read_configuration("data: {primary: {path: 'hf:owner/name'}}")
    assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 30

    def offline(_name: str) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"hf:owner/name: cannot be loaded \(no network\)"):
        read_configuration("data: {primary: 'hf:owner/name'}")
    (tmp_path / "owner/name").mkdir(parents=True)
    with pytest.raises(InputError, match=r"instead of the hub's; write owner/name without hf:"):
        read_configuration("data: {primary: 'hf:owner/name'}")


JOB = """
data:
  primary: {path: 'hf:owner/name', train: 20, validation: 10}
  auxiliary: {more: 'hf:owner/name'}
model: {name: mlp, width: 4}
training:
  guided: {steps: 4, evaluations: 1, primary_batch: 8, batch_size: 8}
  finetune: {steps: 2, evaluations: 1, primary_batch: 8}
strategy: {rank: 3}
"""


def parquet(numbers: range) -> bytes:
    """Images with the names of their classes in the metadata, as the hub has them."""
    images = []
    for number in numbers:
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (200 * (number % 2), number, 0)).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    features = {"img": {"_type": "Image"}, "label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    table = pa.table({"img": images, "label": [number % 2 for number in numbers]})
    stored = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        ),
        stored,
    )
    return stored.getvalue()


def train(folder: Path, output: str, **environment: str) -> tuple[int | None, str]:
    """The exit code and the errors of a process: `datasets` reads the environment once, when it is
    imported.
    """
    (folder / "job.yaml").write_text(JOB)
    environment |= {
        "HF_HOME": str(folder / "home"),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    process = command(
        folder, "train", "job.yaml", f"output={output}", "strategy=flip", **environment
    )
    process.join(120)
    process.kill()
    return process.exitcode, (folder / "err").read_text()
