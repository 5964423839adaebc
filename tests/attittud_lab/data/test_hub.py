"""`hf:owner/name` through the package `datasets` itself, from a hub on this machine; then again
without it, from the cache.
"""

import hashlib
import io
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from attittud_lab.data import hub
from attittud_lab.data.hub import Hub, _answers
from attittud_lab.data.source import Columns
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


REVISION = "a" * 40
SPLITS = {"train": range(40), "test": range(40, 50)}


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


class _Answers(BaseHTTPRequestHandler):
    """As much of the hub as reading one data set takes."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        path = urlparse(self.path).path
        about, stored = "/api/datasets/owner/name", "/datasets/owner/name/resolve/"
        if path == about or path.startswith(f"{about}/revision/"):
            names = [{"rfilename": name} for name in self.files]
            self._send(
                200,
                {
                    "id": "owner/name",
                    "sha": REVISION,
                    "private": False,
                    "tags": [],
                    "siblings": names,
                },
            )
        elif path.startswith(f"{about}/tree/"):
            folder = path.removeprefix(f"{about}/tree/").partition("/")[2]
            inside: list[dict[str, Any]] = [
                {"type": "file", "oid": "0", "size": len(content), "path": name}
                for name, content in self.files.items()
                if name.rpartition("/")[0] == folder
            ]
            self._send(
                200, inside or [{"type": "directory", "oid": "0", "size": 0, "path": "data"}]
            )
        elif (
            path.startswith(stored)
            and (name := path.removeprefix(stored).partition("/")[2]) in self.files
        ):
            self._send(200, self.files[name])
        else:
            self._send(
                404,
                {},
                {"X-Error-Code": "EntryNotFound" if path.startswith(stored) else "RepoNotFound"},
            )

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def _send(self, code: int, content: Any, more: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        tag = hashlib.sha256(body).hexdigest()
        headers = {
            "Content-Length": str(len(body)),
            "ETag": f'"{tag}"',
            "X-Repo-Commit": REVISION,
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        pass


@pytest.fixture
def local_hub() -> Iterator[str]:
    files = {
        f"data/{split}-00000-of-00001.parquet": parquet(numbers)
        for split, numbers in SPLITS.items()
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


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


@pytest.mark.skipif(find_spec("datasets") is None, reason="the extra hub is not installed")
def test_a_data_set_is_read_from_the_hub_and_later_from_the_cache(
    local_hub: str, tmp_path: Path
) -> None:
    def trained(output: str, **environment: str) -> tuple[Any, str]:
        code, err = train(tmp_path, output, **environment)
        assert code == 0, err
        result = json.loads((tmp_path / output / "job/flip/seed-0/result.json").read_text())
        lines = err.splitlines(keepends=True)
        said = [
            line for line in lines if not line.startswith(("guided ", "finetune "))
        ]  # a line for each evaluation
        return {key: result[key] for key in ("test", "examples")}, "".join(said)

    found, err = trained("first", HF_ENDPOINT=local_hub)
    assert err == ""  # no bars of other people
    # The data set's own test split; auxiliary is what the primary task does not have.
    assert found["examples"] == {"train": 20, "validation": 10, "test": 10, "auxiliary/more": 10}
    again, _ = trained("second", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert again == found
    # The same where nobody has said that there is no network; that is mentioned once.
    again, err = trained("third", HF_ENDPOINT="http://127.0.0.1:9")
    assert again == found
    assert (
        err
        == "hf:owner/name: http://127.0.0.1:9 does not answer, so the copy in the cache is used\n"
    )


@pytest.mark.skipif(find_spec("datasets") is None, reason="the extra hub is not installed")
def test_a_hub_that_does_not_answer_is_explained(tmp_path: Path) -> None:
    """One sentence, without half a minute of attempts."""
    code, err = train(tmp_path, "runs", HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 2
    assert err == (
        "attittud: hf:owner/name: cannot be loaded (http://127.0.0.1:9 does not answer, and the cache has no copy); check the "
        "name and the network, or download the data set elsewhere and name its folder\n"
    )


def test_a_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attittud_lab.data.hub.PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes calls and says nothing
        begun = time.monotonic()
        assert not _answers(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert time.monotonic() - begun < 5


def test_csv_files_of_the_hub_are_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    rows = {"text": ["a", "b", "c"], "label": [None, "01", "no"]}
    found = datasets.Dataset.from_dict(rows)
    found.info.builder_name = "csv"
    monkeypatch.setattr("attittud_lab.data.hub._answers", lambda _address: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda _name: {"train": found})
    listing = Hub("owner/name").listing("train", Columns())
    assert listing.classes == ["01", "no"]
    assert "hf:owner/name (train): 'datasets' reads cells such as NA" in caplog.text
