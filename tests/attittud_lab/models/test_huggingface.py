"""Hugging Face networks as a shared body: their heads, packed texts, offline use, and nothing
foreign is run.
"""

import json
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attittud_lab.data.tasks import per_example_losses
from attittud_lab.errors import InputError
from attittud_lab.models.huggingface import Encoder
from attittud_lab.models.network import Network, build_model
from attittud_lab.models.text import Hidden, hide, masked_losses
from attittud_lab.training.train import load_data
from tests.helpers.networks import Payload, two_texts_job
from tests.helpers.texts import tiny_encoder
from tests.helpers.tokens import text_job


def one_by_one(model: Network, hidden: Hidden, head: str, *, cut: bool) -> Tensor:
    """Losses of rows that are alone, and no wider than they must be if `cut`."""
    losses = []
    for row in range(len(hidden.inputs)):
        last = int(hidden.segments[row].nonzero().max()) + 1 if cut else hidden.inputs.shape[1]
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", ["Bert", "text-cnn"])
def test_losses_of_a_batch_equal_losses_of_single_texts(
    tmp_path: Path, name: str, pack: bool
) -> None:
    folder = name if name == "text-cnn" else tiny_encoder(tmp_path / "encoder", name)
    job = text_job(tmp_path, folder, pack=pack)
    data = load_data(job)
    model = build_model(job.model, data, 0).eval()
    examples = data.primary.examples
    assert examples.lengths is not None and len(examples.lengths.unique()) > 5
    rows = torch.arange(16)
    losses = per_example_losses(model, data.primary, *examples.take(rows))
    alone = [
        per_example_losses(
            model, data.primary, *examples.take(rows[i : i + 1], int(examples.lengths[i]))
        )
        for i in rows
    ]
    torch.testing.assert_close(losses, torch.cat(alone), rtol=1e-5, atol=1e-6)
    # Masked words too, with the same ones hidden.
    inputs, _ = data.auxiliary["lm"].examples.take(torch.arange(12))
    hidden = hide(inputs, model.body)
    together = masked_losses(model.body, model.heads["lm"], hidden)
    torch.testing.assert_close(
        together, one_by_one(model, hidden, "lm", cut=True), rtol=1e-5, atol=1e-6
    )
    # With other tokens the losses differ, so the test above could fail.
    other = Hidden(
        hidden.inputs.flip(0),
        *(getattr(hidden, f) for f in ("segments", "positions", "asked", "words")),
    )
    assert not torch.allclose(together, masked_losses(model.body, model.heads["lm"], other))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["Roberta", "ModernBert"])
def test_a_text_has_the_states_of_the_encoder_itself(tmp_path: Path, kind: str) -> None:
    """ModernBERT attends to a window of words: our masks must not replace its own."""
    transformers = pytest.importorskip(
        "transformers", reason="the extra transformers is not installed"
    )
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packed_texts_do_not_see_each_other(tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------------ engines


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("planted", ["weights", "code"])
def test_nothing_that_comes_with_a_hugging_face_folder_is_run(planted: str, tmp_path: Path) -> None:
    folder, ran = tmp_path / "bert", tmp_path / "ran"
    folder.mkdir()
    hugging_face_text(folder)
    payload = pickle.dumps(Payload(ran))
    code = f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nclass Mine: pass\n"
    if planted == "weights":
        (folder / "model.safetensors").unlink()
        torch.save(Payload(ran), folder / "pytorch_model.bin")
    else:
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"] = dict.fromkeys(
            ("AutoConfig", "AutoModel", "AutoTokenizer"), "mine.Mine"
        )
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
        (folder / "mine.py").write_text(code)
    for name in ("vocab.pkl", "optimizer.pt", "scheduler.pt", "training_args.bin", "spiece.model"):
        (folder / name).write_bytes(payload)
    job = two_texts_job(tmp_path, f"hf:{folder}")
    with suppress(InputError):
        build_model(job.model, load_data(job), 0)
    assert not ran.exists()


def hugging_face_text(folder: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="the extra transformers is not installed"
    )
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a good bad film story , what really again"
    (folder / "vocab.txt").write_text(words.replace(" ", "\n"))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    settings: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.BertConfig(vocab_size=14, max_position_embeddings=32, **settings)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
