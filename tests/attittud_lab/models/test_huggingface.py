"""Hugging Face networks as a body: heads, packed texts, and nothing foreign is run."""

import json
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.tasks import per_example_losses
from attittud_lab.errors import InputError
from attittud_lab.models.build import build_model
from attittud_lab.models.huggingface import Encoder
from attittud_lab.models.network import Network
from attittud_lab.models.text import Hidden, hide, masked_losses
from attittud_lab.training.train import load_data
from tests.helpers.networks import Payload
from tests.helpers.texts import tiny_encoder, write_reviews

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def text_job(tmp_path: Path, folder: Path | str, *, pack: bool = True) -> Config:
    write_reviews(tmp_path / "labelled.jsonl", 60, 0)
    write_reviews(tmp_path / "plain.jsonl", 40, 1, labelled=False)
    name = folder if isinstance(folder, str) else f"hf:{folder}"
    return loads(
        f"""
        data:
          primary: {{path: {tmp_path}/labelled.jsonl}}
          auxiliary: {{lm: {{path: {tmp_path}/plain.jsonl, objective: masked_lm}}}}
          max_length: 24
          buckets: 4
          pack: {str(pack).lower()}
        model: {{name: "{name}", width: 8}}
        output: {tmp_path}/runs
        """
    )


def one_by_one(model: Network, hidden: Hidden, head: str) -> Tensor:
    """Losses of rows that are alone, and no wider than they must be."""
    losses = []
    for row in range(len(hidden.inputs)):
        last = int(hidden.segments[row].nonzero().max()) + 1
        kept = hidden.asked[row]
        alone = Hidden(
            hidden.inputs[row : row + 1, :last],
            hidden.segments[row : row + 1, :last],
            hidden.positions[row : row + 1, kept],
            hidden.asked[row : row + 1, kept],
            hidden.words[row : row + 1, kept],
        )
        losses.append(masked_losses(model.body, model.heads[head], alone))
    return torch.cat(losses)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", ["Bert", "text-cnn"])
def test_losses_of_a_batch_equal_losses_of_single_texts(tmp_path, name, pack):
    folder = name if name == "text-cnn" else tiny_encoder(tmp_path / "encoder", name)
    job = text_job(tmp_path, folder, pack=pack)
    data = load_data(job)
    model = build_model(job.model, data, 0).eval()
    examples = data.primary.examples
    assert examples.lengths is not None and len(examples.lengths.unique()) > 5
    rows = torch.arange(16)
    losses = per_example_losses(model, data.primary, *examples.take(rows))
    alone = []
    for row in rows.split(1):
        one = examples.take(row, int(examples.lengths[row]))
        alone.append(per_example_losses(model, data.primary, *one))
    torch.testing.assert_close(losses, torch.cat(alone), rtol=1e-5, atol=1e-6)
    # Masked words too, with the same ones hidden.
    inputs, _ = data.auxiliary["lm"].examples.take(torch.arange(12))
    hidden = hide(inputs, model.body)
    together = masked_losses(model.body, model.heads["lm"], hidden)
    torch.testing.assert_close(together, one_by_one(model, hidden, "lm"), rtol=1e-5, atol=1e-6)
    # With other tokens the losses differ, so the test above could fail.
    other = replace(hidden, inputs=hidden.inputs.flip(0))
    assert not torch.allclose(together, masked_losses(model.body, model.heads["lm"], other))


@pytest.mark.parametrize("kind", ["Roberta", "ModernBert"])
def test_a_text_has_the_states_of_the_encoder_itself(tmp_path, kind):
    """ModernBERT attends to a window of words: our masks must not replace its own."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    folder = tiny_encoder(tmp_path, kind)
    own = transformers.AutoModel.from_pretrained(folder).eval()
    body = Encoder(
        transformers.AutoModel.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    ).eval()
    assert body.packs == (kind != "ModernBert")
    inputs = torch.randint(5, 29, (2, 60))
    inputs[1, 45:] = 0
    present = inputs != 0
    with torch.no_grad():
        wanted = own(input_ids=inputs, attention_mask=present.long()).last_hidden_state
        torch.testing.assert_close(
            body.tokens(inputs)[present], wanted[present], rtol=1e-4, atol=1e-4
        )


def test_packed_texts_do_not_see_each_other(tmp_path):
    """A text in a full block has the same states as transformers gives for it alone."""
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder", "Roberta"))
    data = load_data(job)
    model = build_model(job.model, data, 0).eval()
    body = model.body
    assert isinstance(body, Encoder) and data.auxiliary["lm"].packed
    inputs = data.auxiliary["lm"].examples.inputs
    segments = body.segments(inputs)
    assert int(segments.max()) > 1
    with torch.no_grad():
        states = body.tokens(inputs, segments)
        for row, numbers, own in zip(inputs[:10], segments[:10], states[:10], strict=True):
            for number in range(1, int(numbers.max()) + 1):
                text = row[numbers == number]
                alone = body.model(input_ids=text[None].long()).last_hidden_state[0]
                torch.testing.assert_close(own[numbers == number], alone, rtol=1e-4, atol=1e-5)
        # Without segments they do.
        assert not torch.allclose(body.tokens(inputs), states, atol=1e-3)


@pytest.mark.parametrize("planted", ["weights", "code"])
def test_nothing_that_comes_with_a_hugging_face_folder_is_run(planted, tmp_path):
    folder, ran = tmp_path / "bert", tmp_path / "ran"
    tiny_encoder(folder)
    payload = pickle.dumps(Payload(ran))
    code = f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nclass Mine: pass\n"
    if planted == "weights":
        (folder / "model.safetensors").unlink()
        torch.save(Payload(ran), folder / "pytorch_model.bin")
    else:
        config = json.loads((folder / "config.json").read_text())
        loaded = ("AutoConfig", "AutoModel", "AutoTokenizer")
        config["auto_map"] = dict.fromkeys(loaded, "mine.Mine")
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
        (folder / "mine.py").write_text(code)
    for name in ("vocab.pkl", "optimizer.pt", "scheduler.pt", "training_args.bin", "spiece.model"):
        (folder / name).write_bytes(payload)
    job = text_job(tmp_path, folder)
    with suppress(InputError):
        build_model(job.model, load_data(job), 0)
    assert not ran.exists()
