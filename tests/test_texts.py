"""From texts to tensors: tokenised once, packed without loss, masked as announced; rows of one batch never meet."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import Tensor, nn
from torch.nn import functional as F

from attittud.autograd.layout import Layout
from attittud.engine import make_engine
from attittud_lab.config.load import loads
from attittud_lab.config.schema import ModelConfig
from attittud_lab.data.tasks import Examples, Order, per_example_losses
from attittud_lab.data.texts import SHORTEST, Reader, tokenised
from attittud_lab.errors import InputError
from attittud_lab.models import Wanted
from attittud_lab.models.huggingface import Encoder, hf_body, hf_words
from attittud_lab.models.network import Network, build_model
from attittud_lab.models.text import Hidden, MaskedHead, hide, masked_losses
from attittud_lab.training.evaluate import evaluate
from attittud_lab.training.train import load_data
from tests.oracle import flatten, gradients
from tests.texts import tiny_encoder, write_reviews

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tokenizers and transformers


class Letters:
    """Every letter is a word; 1 and 2 are put around a text."""

    vocabulary, pad, prefix, suffix = 300, 0, [1], [2]

    def __init__(self, shift: int = 0) -> None:
        self.shift, self.calls = shift, 0

    @property
    def fingerprint(self) -> str:
        return f"letters {self.shift}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.calls += 1
        return [[ord(letter) + self.shift for letter in text] for text in texts]


# ------------------------------------------------------------------------------------------------ tokenised once


def test_tokens_are_kept_under_a_checksum(tmp_path: Path) -> None:
    words, texts = Letters(), ["abc", "", "de"]
    first = tokenised(words, texts, tmp_path)
    assert [row.tolist() for row in first] == [[97, 98, 99], [], [100, 101]]
    again = tokenised(words, texts, tmp_path)
    assert words.calls == 1 and [row.tolist() for row in again] == [row.tolist() for row in first]
    # Another tokenizer, another text, another cut between the same letters: other files.
    assert [row.tolist() for row in tokenised(Letters(1), texts, tmp_path)][2] == [101, 102]
    tokenised(words, ["abd", "", "de"], tmp_path)
    tokenised(words, ["ab", "c", "de"], tmp_path)
    assert words.calls == 3 and len(list(tmp_path.iterdir())) == 4
    assert [row.tolist() for row in tokenised(words, texts, None)] == [row.tolist() for row in first]


@pytest.mark.parametrize("damage", ["a bit", "the end", "all"])
def test_damaged_tokens_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    words, texts = Letters(), ["abc" * 100, "de"]
    before = tokenised(words, texts, tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "a bit":
        content[-20] ^= 1
    path.write_bytes({"a bit": bytes(content), "the end": bytes(content[:-7]), "all": b"{}"}[damage])
    with caplog.at_level(logging.WARNING, "attittud"):
        after = tokenised(words, texts, tmp_path)
    assert "does not fit its own checksum" in caplog.text and words.calls == 2
    assert [row.tolist() for row in after] == [row.tolist() for row in before]
    assert tokenised(words, texts, tmp_path) is not None and words.calls == 2


def test_a_foreign_file_in_the_place_of_tokens(tmp_path: Path) -> None:
    words, texts = Letters(), ["abc", "de"]
    tokenised(words, texts, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(save({name: np.array(3) for name in ("numbers", "ends", "sha256")}))
    again = [row.tolist() for row in tokenised(words, texts, tmp_path)]
    assert again == [[97, 98, 99], [100, 101]] and words.calls == 2


def test_another_process_may_be_writing_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has half-written is not taken away from it."""

    def flush(_: int) -> None:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        tokenised(Letters(), ["of the other process"], tmp_path)

    monkeypatch.setattr(os, "fsync", flush)
    tokenised(Letters(), ["abc"], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_tokens_that_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"choose another folder by data\.cache=FOLDER"):
        tokenised(Letters(), ["abc"], tmp_path / "file")


def test_rows_are_the_beginnings_of_texts() -> None:
    inputs, lengths = Reader(Letters(), 8, pack=True).rows(["abc", "abcdefghij", ""])
    assert inputs.tolist() == [[1, 97, 98, 99, 2, 0, 0, 0], [1, *range(97, 103), 2], [1, 2, 0, 0, 0, 0, 0, 0]]
    assert lengths.tolist() == [5, 8, 2]
    with pytest.raises(InputError, match="no room for words"):
        Reader(Letters(), 2, pack=True).rows(["abc"])


@pytest.mark.parametrize("pack", [True, False])
def test_blocks_hold_every_word_once(pack: bool) -> None:
    texts = [chr(97 + n % 26) * size for n, size in enumerate([1, 30, 0, 5, 100, 2, 2, 2, 61, 7] * 5)]
    inputs, lengths = Reader(Letters(), 32, pack=pack).blocks(texts)
    assert torch.equal(lengths, (inputs != 0).sum(1)) and int(lengths.max()) == 32
    kept = inputs[(inputs > 2)]
    assert kept.tolist() == [ord(letter) for text in texts for letter in text]
    starts, ends = (inputs == 1).sum(1), (inputs == 2).sum(1)
    assert torch.equal(starts, ends) and (starts > 1).any() == pack and (inputs[:, 0] == 1).all()
    # A text that is cut goes on with a frame of its own; between frames there is one text.
    for row in inputs:
        pieces = "".join(chr(64 + token) if token < 3 else chr(token) for token in row.tolist() if token)
        for piece in pieces.split("A")[1:]:
            assert piece.endswith("B") and len(set(piece[:-1])) == 1
    if pack:  # full, but for what is too little for a text
        assert (lengths[:-1] > 32 - 2 - SHORTEST).all()
    with pytest.raises(InputError, match="not a single word"):
        Reader(Letters(), 32, pack=pack).blocks(["", ""])


def test_a_tokenizers_own_padding_is_overruled(tmp_path: Path) -> None:
    words = hf_words(str(tiny_encoder(tmp_path, fixed_padding=16)))
    assert words is not None
    assert words.encode(["good film", "a " * 40])[0] == [5, 15] and len(words.encode(["a " * 40])[0]) == 40
    assert (words.prefix, words.suffix, words.pad) == ([2], [3], 0)
    plain = hf_words(str(tiny_encoder(tmp_path / "plain")))
    assert plain is not None and plain.fingerprint == words.fingerprint  # the same words
    before = words.fingerprint
    words.encode(["changes the tokenizer's settings"])
    assert words.fingerprint == before
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    stored["model"]["vocab"] |= {"good": 6, "great": 5}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    changed = hf_words(str(tmp_path))
    assert changed is not None and changed.fingerprint != before


# ------------------------------------------------------------------------------------------------ similar lengths


def test_batches_of_similar_lengths() -> None:
    lengths = torch.randint(1, 200, (500,), generator=torch.Generator().manual_seed(0))
    order = Order(500, 3, "s", lengths=lengths)
    walk = [order.batch(step, 16) for step in range(94)]  # just over three epochs
    flat = torch.cat(walk).tolist()
    for epoch in range(3):
        assert sorted(flat[500 * epoch : 500 * (epoch + 1)]) == list(range(500))
    assert flat[:500] != flat[500:1000]
    spread = torch.stack([lengths[rows].float().std() for rows in walk]).median()
    plain = Order(500, 3, "s")
    usual = torch.stack([lengths[plain.batch(step, 16)].float().std() for step in range(94)]).median()
    assert spread < usual / 5
    # Long and short batches take turns, and the first rows of a batch are not its shortest.
    means = torch.tensor([float(lengths[rows].float().mean()) for rows in walk])
    assert abs(float(torch.corrcoef(torch.stack([means[:-1], means[1:]]))[0, 1])) < 0.35
    first = torch.tensor([float((lengths[rows[0]] > lengths[rows]).float().mean()) for rows in walk])
    assert 0.35 < float(first.mean()) < 0.65
    # Entered anywhere, and known on the host.
    assert torch.equal(Order(500, 3, "s", lengths=lengths).batch(40, 16), walk[40])
    assert torch.equal(order.batch(40, 16, in_memory=True), walk[40])


def test_texts_are_cut_to_their_batch() -> None:
    inputs = torch.zeros(4, 50, dtype=torch.int32)
    examples = Examples(inputs, None, torch.tensor([3, 32, 33, 50]), bucket=32)
    widths = [examples.width(torch.tensor(rows)) for rows in ([0], [0, 1], [0, 2], [3])]
    assert widths == [32, 32, 50, 50]
    assert examples.take(torch.tensor([0, 1]), 32)[0].shape == (2, 32)
    assert Examples(inputs, None).width(torch.tensor([0])) is None


# ------------------------------------------------------------------------------------------------ masking


class OneHot(nn.Module):
    """Sees each token and nothing else."""

    features, vocabulary, pad, mask, special = 5, 5, 0, 1, (0, 1)
    table = 100 * torch.eye(5)

    def segments(self, inputs: Tensor) -> Tensor:
        return (inputs != 0).long()

    def tokens(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        return F.one_hot(inputs.long(), 5).float()


class Straight(MaskedHead):
    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return states @ table.T


def test_masked_losses_are_of_masked_tokens_only() -> None:
    body = OneHot()
    inputs = torch.randint(2, 5, (64, 60))
    inputs[:, 40:] = 0
    torch.manual_seed(0)
    hidden = hide(inputs, body)
    changed = hidden.inputs != inputs
    assert not changed[:, 40:].any()
    assert (hidden.asked.sum(1) == 6).all()  # 15 % of 40
    losses = masked_losses(body, Straight(5, body.table), hidden)
    # A token that is shown is predicted without loss, a hidden one is not; nearly 88 % of those asked for are changed.
    assert torch.equal(losses > 1, changed.any(1))
    torch.testing.assert_close(losses, 100 * changed.sum(1) / 6)
    assert float(changed[:, :40].float().mean()) == pytest.approx(0.15 * (0.8 + 0.1 * 4 / 5), abs=0.02)
    assert float((hidden.inputs == 1)[:, :40].float().mean()) == pytest.approx(0.15 * (0.8 + 0.1 / 5), abs=0.02)


def test_short_and_empty_rows_have_a_loss() -> None:
    inputs = torch.tensor([[3, 0, 0, 0], [0, 0, 0, 0], [2, 3, 4, 2]])
    hidden = hide(inputs, OneHot())
    assert hidden.asked.sum(1).tolist() == [1, 0, 1]
    assert masked_losses(OneHot(), Straight(5, OneHot.table), hidden)[1] == 0


def test_masks_are_drawn_anew() -> None:
    inputs = torch.randint(2, 5, (16, 60))
    first, second = (hide(inputs, OneHot()).positions.sort().values for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    third = hide(inputs, OneHot())
    torch.manual_seed(4)
    assert torch.equal(third.inputs, hide(inputs, OneHot()).inputs)


def test_signs_are_not_hidden_and_draw_no_borders(tmp_path: Path) -> None:
    """[CLS] and its like are never asked for; where one is drawn as a random word, texts of a block stay apart as they were."""
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder"))
    data = load_data(job)
    body = build_model(job.model, data, 0).body
    assert isinstance(body, Encoder)
    inputs = data.auxiliary["lm"].examples.inputs.repeat(20, 1)
    signs = torch.isin(inputs, torch.tensor(body.special))
    body.vocabulary = 3  # random words are [PAD], [UNK] and [CLS] alone
    hidden = hide(inputs, body)
    changed = hidden.inputs != inputs
    assert not (changed & signs).any() and not torch.isin(hidden.wanted[hidden.asked], torch.tensor(body.special)).any()
    assert {0, 1, 2, 4} == set(hidden.inputs[changed].tolist())
    assert torch.equal(hidden.segments, body.segments(inputs))
    assert not torch.equal(hidden.segments, body.segments(hidden.inputs))  # so it could have been otherwise


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert"])
def test_a_stored_head_is_taken_over(tmp_path: Path, kind: str) -> None:
    """Against the logits of transformers, which ties the decoder in its own way."""
    import transformers

    folder = tiny_encoder(tmp_path / "encoder", kind, masked=True)
    job = text_job(tmp_path, folder, pack=False)
    model = build_model(job.model, load_data(job), 0).eval()
    original = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    inputs = torch.randint(5, 29, (3, 12))
    with torch.no_grad():
        states = model.body.tokens(inputs)
        found = model.heads["lm"](states, model.body.table)
        torch.testing.assert_close(found, original(input_ids=inputs).logits, rtol=1e-4, atol=1e-4)


def test_the_head_is_tied_and_not_stored_twice(tmp_path: Path) -> None:
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder"))
    data = load_data(job)
    model = build_model(job.model, data, 0)
    assert set(model.heads["lm"].state_dict()) == {"dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias"}
    inputs, _ = data.auxiliary["lm"].examples.take(torch.arange(8))
    model.masked_losses(inputs, "lm").mean().backward()
    table = model.body.table
    # Words that are in no input learn too: as what was not the answer.
    missing = sorted(set(range(29)) - set(inputs.flatten().tolist()) - {4})
    assert missing and (table.grad[missing].abs().sum(1) > 0).all()


# ------------------------------------------------------------------------------------------------ nothing leaks


def text_job(tmp_path: Path, folder: Path | str, *, pack: bool = True, more: str = ""):
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
        {more}
        """
    )


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
            hidden.wanted[row : row + 1, kept],
        )
        losses.append(masked_losses(model.body, model.heads[head], alone))
    return torch.cat(losses)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert", "text-cnn"])
def test_losses_of_a_batch_are_those_of_single_texts(tmp_path: Path, name: str, pack: bool) -> None:
    folder = name if name == "text-cnn" else tiny_encoder(tmp_path / "encoder", name)
    job = text_job(tmp_path, folder, pack=pack)
    data = load_data(job)
    if pack and isinstance(folder, Path) and not _packs(job):
        with pytest.raises(InputError, match=r"cannot be kept from mixing .* set data\.pack=false"):
            build_model(job.model, data, 0)
        return
    model = build_model(job.model, data, 0).eval()
    examples = data.primary.examples
    assert examples.lengths is not None and len(examples.lengths.unique()) > 5
    rows = torch.arange(16)
    losses = per_example_losses(model, data.primary, *examples.take(rows))
    alone = [
        per_example_losses(model, data.primary, *examples.take(rows[i : i + 1], int(examples.lengths[i]))) for i in rows
    ]
    torch.testing.assert_close(losses, torch.cat(alone), rtol=1e-5, atol=1e-6)
    # Masked words too, with the same ones hidden.
    inputs, _ = data.auxiliary["lm"].examples.take(torch.arange(12))
    hidden = hide(inputs, model.body)
    together = masked_losses(model.body, model.heads["lm"], hidden)
    torch.testing.assert_close(together, one_by_one(model, hidden, "lm", cut=True), rtol=1e-5, atol=1e-6)
    # What stands behind the padding sign is of no consequence: the test above could fail.
    other = Hidden(hidden.inputs.flip(0), *(getattr(hidden, f) for f in ("segments", "positions", "asked", "wanted")))
    assert not torch.allclose(together, masked_losses(model.body, model.heads["lm"], other))


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "ModernBert"])
def test_a_text_has_the_states_of_the_encoder_itself(tmp_path: Path, kind: str) -> None:
    """ModernBERT sees some words at a time: masks of ours must not replace those of its own."""
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    folder = tiny_encoder(tmp_path, kind)
    own = transformers.AutoModel.from_pretrained(folder).eval()
    body = Encoder(
        transformers.AutoModel.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ).eval()
    assert body.packs == (kind != "ModernBert")
    inputs = torch.randint(5, 29, (2, 60))
    inputs[1, 45:] = 0
    present = inputs != 0
    with torch.no_grad():
        wanted = own(input_ids=inputs, attention_mask=present.long()).last_hidden_state
        torch.testing.assert_close(body.tokens(inputs)[present], wanted[present], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "ModernBert"])
def test_dropout_is_that_of_the_configuration(tmp_path: Path, kind: str) -> None:
    folder = str(tiny_encoder(tmp_path, kind))
    own, ours = (hf_body(Wanted(ModelConfig(dropout=share), (), "text"), folder).model for share in (0.0, 0.4))
    found = [{part.p for part in model.modules() if isinstance(part, nn.Dropout)} for model in (own, ours)]
    assert 0.4 in found[1] and 0.4 not in found[0]


def test_a_network_without_dropout_and_a_tokenizer_without_padding(tmp_path: Path) -> None:
    """Refused: a setting without effect, and a word that would be taken for padding."""
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    sizes = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1]}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(tmp_path / "image")
    with pytest.raises(InputError, match=r"image has no dropout .* leave model\.dropout at 0"):
        hf_body(Wanted(ModelConfig(dropout=0.1), (), "image"), str(tmp_path / "image"))
    folder = tiny_encoder(tmp_path / "text")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            stored = json.loads((folder / name).read_text())
            stored["pad_token"] = None
            (folder / name).write_text(json.dumps(stored))
    with pytest.raises(InputError, match=r"its tokenizer has no sign for padding"):
        hf_words(str(folder))


def _packs(job) -> bool:
    from attittud_lab.models.huggingface import hf_body

    body = hf_body(Wanted(job.model, (), "text"), job.model.name.removeprefix("hf:"))
    return bool(getattr(body, "packs", False))


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_packed_texts_do_not_see_each_other(tmp_path: Path, kind: str) -> None:
    """The states of a text in a full block are those that transformers gives for it alone."""
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder", kind))
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


def test_looking_at_texts_by_length_changes_no_figure(tmp_path: Path) -> None:
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder"))
    data = load_data(job)
    model = build_model(job.model, data, 0)
    plain = Examples(data.test.inputs, data.test.targets)
    with torch.no_grad():  # outputs that tell the texts apart
        head = model.heads["primary"]
        head.weight.mul_(1000)
        head.bias.sub_(model.eval()(plain.inputs, head="primary").mean(0))
    found = evaluate(model, data.primary, data.test, torch.device("cpu"), batch_size=5)
    assert 0 < found["accuracy"] < 1 and found["loss"] > 0.1
    assert found == pytest.approx(evaluate(model, data.primary, plain, torch.device("cpu")), rel=1e-5)


@pytest.mark.parametrize("part", ["labelled", "plain"])
def test_texts_without_a_word_are_refused(tmp_path: Path, part: str) -> None:
    """Some may be empty, not all: nothing could be learned from them, whether they have labels or not."""
    job, path = text_job(tmp_path, "text-cnn"), tmp_path / f"{part}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def write(kept: int) -> None:
        texts = [row["text"] if number < kept else " \n" for number, row in enumerate(rows)]
        path.write_text("\n".join(json.dumps(row | {"text": t}) for row, t in zip(rows, texts, strict=True)))

    write(kept=len(rows) // 2)
    load_data(job)
    write(kept=0)
    with pytest.raises(InputError, match=rf"{part}\.jsonl: there is not a single word in its texts; .* by input:"):
        load_data(job)


# ------------------------------------------------------------------------------------------------ engines


@pytest.mark.parametrize("positions", ["of each row", "of all rows"])
@pytest.mark.parametrize("engine", ["loop", "batched", "hooks"])
def test_engines_agree_on_the_encoder(tmp_path: Path, engine: str, positions: str) -> None:
    """In float32, on texts of unequal lengths; also where transformers makes position embeddings of batch dimension 1."""
    job = text_job(tmp_path, tiny_encoder(tmp_path / "encoder"))
    data = load_data(job)
    model = build_model(job.model, data, 0).eval()
    if positions == "of all rows":
        model.body.first = None
    rows = torch.arange(8)
    names = [name for name, _ in model.named_parameters() if name.startswith("body") and "word_embeddings" not in name]
    J = torch.stack([
        flatten(gradients(per_example_losses(model, data.primary, *data.primary.examples.take(rows[i : i + 1]))[0], model), names)
        for i in rows
    ])  # fmt: skip
    layout = Layout((name, parameter) for name, parameter in model.named_parameters() if name in names)
    used = make_engine(engine)
    weights = torch.randn(4, 8)
    with used.watch(model):
        losses = per_example_losses(model, data.primary, *data.primary.examples.take(rows))
        used.seen()
        jacobian = used.jacobian(losses, layout)
        found = jacobian.left(weights)
        gram = jacobian.gram()
    expected = weights @ J
    assert float((found - expected).norm() / expected.norm()) < 1e-4
    assert float((gram - (J @ J.T)).norm() / (J @ J.T).norm()) < 1e-4
