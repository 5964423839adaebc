"""Table 1: its runs, their starting points, and the section about them."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from attittud_lab.compare.candidates import Budget, candidates, job, variants
from attittud_lab.config.schema import Config
from attittud_lab.data.parts import read_parts
from attittud_lab.data.prepare import split_seed
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from experiments.reproduce.experiments import EXPERIMENTS
from experiments.reproduce.fingerprint import fingerprint
from experiments.reproduce.results import read_lines
from experiments.reproduce.run import parts, read_part, reproduce
from experiments.reproduce.text import QUICK_PARTS, write_texts

# of tokenizers and transformers
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_no_two_runs_are_taken_for_one_another(tmp_path):
    """Paths are no part of a fingerprint, so tasks and texts have to differ in other ways."""
    pytest.importorskip("transformers", reason="needs transformers")
    folder = write_texts(tmp_path)
    seen: dict[str, str] = {}
    for name, config in parts("table1-text", folder, [f"model.name=hf:{tmp_path}/encoder"]).items():
        for candidate in candidates(config):
            settings = variants(candidate.strategy, config.compare, tuned=candidate.tuned)
            assert len(settings) == 3  # an equal search
            # Plain fine-tuning is the same whatever the auxiliary text is: trained once, for both
            # columns.
            place = name.removesuffix("-swapped") if candidate.label == "primary_only" else name
            for variant in settings:
                run = fingerprint(job(config, candidate, variant, Budget(4, 2)))
                assert seen.setdefault(run, place) == place, candidate.label
    assert len(set(seen.values())) == 8 and len(seen) == 8 * 6 * 3 - 4 * 3
    # The encoder's name counts, its folder does not.
    prints = []
    for place in ("/a/minilm", "/b/minilm", "/a/roberta"):
        config = next(iter(parts("table1-text", folder, [f"model.name=hf:{place}"]).values()))
        prints.append(fingerprint(config))
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.nightly
def test_all_rows_start_from_the_same_masked_word_heads(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    torch.set_num_threads(1)
    options: dict[str, Any] = {"results": tmp_path / "results", "work": tmp_path / "work"}
    # The guided phase does not move, as its rate is 0 in 32 bits, and fine-tuning leaves the heads
    # of texts alone: they stay what they began with.
    still = ["compare.space={training.guided.lr: [1e-60]}", "training.guided.weight_decay=0"]
    reproduce(["table1-text"], None, progress=Progress(), overrides=still, quick=True, **options)
    lines = read_lines(tmp_path / "results" / "table1-text.jsonl")
    assert {found["part"] for found in lines} == {"start", *QUICK_PARTS}
    assert all(found["result"]["metric"] == "macro_f1" for found in lines)
    folder = tmp_path / "work" / "table1-text"
    (start,) = folder.glob("start/runs/start/*/seed-1/weights.safetensors")
    heads = load_file(start)
    expected = {"primary", "imdb_text", "amazon_text"}
    assert {name.split(".")[1] for name in heads if name.startswith("heads.")} == expected
    # The encoder did not move: plain fine-tuning begins where it would have without a start.
    (encoder,) = (tmp_path / "work").glob("miniature-encoder/model.safetensors")
    for name, weights in load_file(encoder).items():
        assert "pooler" in name or torch.equal(weights, heads[f"body.model.{name}"]), name
    for part in QUICK_PARTS:
        paths = [*(folder / part).glob("runs/*/**/seed-1/weights.safetensors")]
        assert len(paths) == 4
        for path in paths:
            weights = load_file(path)
            for name in heads:
                if name.startswith("heads.imdb_text."):
                    assert torch.equal(weights[name], heads[name]), name
        echo = next((folder / part).glob("runs/flip/**/seed-1/run.json"))
        strategy = json.loads(echo.read_text())["config"]["strategy"]
        wanted = (["*word_embeddings*"], 4, "hooks")
        assert (strategy["exclude"], strategy["refresh_every"], strategy["engine"]) == wanted


def test_no_run_and_no_start_reads_texts_that_validate_or_test(tmp_path):
    """The start is trained once, so all parts hold out the same reviews with the same seed."""
    folder = write_texts(tmp_path)
    few = ["data.primary.validation=40", "model.name=hf:encoder"]
    start = read_part(EXPERIMENTS["table1-text"].start(folder), [*few, "data.primary.train=60"])

    def read(config: Config, seed: int) -> tuple[set[object], set[object]]:
        found = read_parts(config.data, split_seed(config.data, seed))
        held_out = {text for name in ("validation", "test") for text in found.primary[name].raws()}
        return held_out, {text for part in found.auxiliary.values() for text in part.raws()}

    starts = {seed: read(start, seed)[1] for seed in range(5)}
    fewer = parts("table1-text", folder, [*few, "data.primary.train=60"])
    for name, found in parts("table1-text", folder, few).items():
        config = found if found.data.primary.train is None else fewer[name]
        for seed, texts in starts.items():
            held_out, own = read(config, seed)
            assert len(held_out) > 60 and len(own) > 100 and len(texts) > 200
            assert not held_out & own, name
            assert not held_out & texts, f"{name}, seed {seed}"


def test_what_is_missing_is_named(tmp_path):
    options: dict[str, Any] = {"results": tmp_path, "work": tmp_path, "progress": Progress()}
    data = write_texts(tmp_path)
    with pytest.raises(InputError, match="--model"):
        reproduce(["table1-text"], data, overrides=[], **options)
    with pytest.raises(InputError, match="imdb"):
        reproduce(["table1-text"], tmp_path, overrides=[], model=tmp_path, **options)
