"""A trained model: it takes images, paths, texts or rows and gives labels and calibrated
probabilities. `restore.py` reads it from its run folder.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attittud_lab.config.schema import Config
from attittud_lab.data.features import Features
from attittud_lab.data.images import Pixels, decode_all, deep
from attittud_lab.data.prepare import rows_bytes
from attittud_lab.data.splits import are_in, digests_of
from attittud_lab.data.tasks import Examples
from attittud_lab.data.texts import Reader
from attittud_lab.errors import InputError, one_line
from attittud_lab.features.base import FeatureMap, Matrix
from attittud_lab.files import replacing
from attittud_lab.models.network import Network
from attittud_lab.predict import given
from attittud_lab.runs.model import ModelFile
from attittud_lab.training.devices import enough_memory
from attittud_lab.training.evaluate import outputs_of
from attittud_lab.uses.evaluate import SimpleModel

AT_ONCE = 512
"""Inputs of a batch: as many as an evaluation has."""
THRESHOLD = 0.5
"""With several labels at once, an input gets the labels whose probability is above this."""


class Classifier(nn.Module):
    """Probabilities (n x classes) of uint8 images, token numbers or features: the mean over its
    members.
    """

    def __init__(
        self,
        members: Sequence[Network],
        shares: Sequence[float],
        *,
        several: bool,
        temperature: float,
    ) -> None:
        """Take networks and their shares, which add up to 1; scores are divided by the temperature
        before they become probabilities.
        """
        super().__init__()
        self.members = nn.ModuleList(members)
        self.several = several
        self.shares = list(shares)
        self.temperature = temperature

    def forward(self, inputs: Tensor, raw: bool = False) -> Tensor:
        """Return probabilities; with `raw`, the scores before they are divided by the temperature:
        for a single member, its outputs.
        """
        scores = [member(inputs, head="primary").float() for member in self.members]
        mean: Tensor = scores[0]
        if len(scores) > 1:
            mean = mean_scores(scores, self.shares, several=self.several)
        if raw:
            return mean
        return probabilities_of(mean / self.temperature, several=self.several)


def probabilities_of(scores: Tensor, *, several: bool) -> Tensor:
    """Return probabilities, n x classes, of scores; with several labels at once, of logits."""
    if several:
        return scores.sigmoid()
    return scores.softmax(1)


def mean_scores(scores: Sequence[Tensor], shares: Sequence[float], *, several: bool) -> Tensor:
    """Return the weighted mean of the probabilities of several models, as scores (n x classes): its
    logarithm, or with several labels at once its logit. The shares add up to 1.
    """
    parts = []
    for share, part in zip(shares, scores, strict=True):
        parts.append(share * probabilities_of(part, several=several))
    mean = torch.stack(parts).sum(0)
    # The limits keep scores finite where a probability is 0 or 1.
    if several:
        return torch.logit(mean, 1e-7)
    return mean.clamp(min=1e-30).log()


@dataclass
class Batch:
    """Inputs that are ready for a model."""

    examples: Examples | None
    """Tensors for the network of `model:`, and the columns of tables; None if no member needs
    them.
    """
    features: dict[str, Matrix]
    """Rows for simple models, by the name of their features."""
    read: list[Examples]
    """What each group of networks reads."""


@dataclass
class NetworkMembers:
    """The networks among the members that read the same tensors."""

    module: Classifier
    """Their mean, for uint8 images, token numbers or columns."""
    share: float
    reader: Reader | None = None
    """How they read texts, if not as the network of `model:`."""


@dataclass
class SimpleMember:
    """A simple model among the members, its share, and the name of its features."""

    model: SimpleModel
    share: float
    features: str


@dataclass(eq=False, repr=False)
class Model:
    """What `attittud_lab.load` returns: the mean of its members' probabilities."""

    about: ModelFile
    config: Config
    networks: list[NetworkMembers]
    simple: list[SimpleMember]
    maps: dict[str, FeatureMap]
    """How examples become the features of simple models, by the name of the features."""
    _encoder: Reader | Features | None
    """How texts or tables become tensors for the network of `model:`; None for images."""
    _device: torch.device

    def __post_init__(self) -> None:
        self.classes = list(self.about.classes)
        self.several = self.about.several
        self.temperature = self.about.temperature or 1.0

    @property
    def module(self) -> Classifier | None:
        """The mean of the networks; None if there is none, or if they read texts in different
        ways.
        """
        if len(self.networks) != 1:
            return None
        return self.networks[0].module

    @property
    def bytes(self) -> int:
        """The size of all members and of their features."""
        tensors: list[Tensor] = []
        for group in self.networks:
            tensors += group.module.state_dict().values()
        for member in self.simple:
            tensors += member.model.tensors().values()
        total = sum(tensor.nbytes for tensor in tensors)
        return total + sum(feature_map.bytes for feature_map in self.maps.values())

    @property
    def note(self) -> str | None:
        """Why probabilities are not calibrated; None if they are."""
        if self.about.temperature is not None:
            return None
        return "probabilities are not calibrated, because the run folder has no temperature; to get one, train again with --fresh"

    def predict(self, inputs: Any, threshold: float = THRESHOLD) -> list[str] | list[list[str]]:
        """Return the class of each input; with several labels at once, the list of labels above the
        threshold.
        """
        predicted: list[Any] = []
        for scores in self._batches(inputs):
            predicted += self.labels(scores, threshold)
        return predicted

    def predict_proba(self, inputs: Any) -> npt.NDArray[np.float32]:
        """Return the probability of every class for each input, n x classes in the order of
        `classes`.
        """
        parts = [self.probabilities(scores) for scores in self._batches(inputs)]
        if parts:
            return np.concatenate(parts)
        return np.empty((0, len(self.classes)), dtype=np.float32)

    def batch(self, raws: Sequence[Any], names: Sequence[str]) -> Batch:
        """Prepare some inputs as in training, for all members; error messages use these names for
        the inputs. Only what some member reads is computed.
        """
        if self.about.kind == "image":
            raws = deep(raws, self.about.white)
        examples = None
        networks_need_them = any(group.reader is None for group in self.networks)
        if networks_need_them or self.about.kind == "table":
            examples = self._examples(raws, names)
        inputs: Any = list(raws)
        if self.about.kind == "table":
            assert examples is not None
            inputs = examples.inputs.numpy()
        try:
            return self.with_features(inputs, examples)
        except InputError as error:
            if len(raws) > 1:
                raise
            raise InputError(f"{names[0]}: {error}") from None  # bytes have no name of their own

    def with_features(self, inputs: Any, examples: Examples | None) -> Batch:
        """Return a batch: the tensors, and the features of raw inputs (of the columns of a
        table). `examples` are the inputs as the network of `model:` reads them.
        """
        features = {}
        for name, feature_map in self.maps.items():
            features[name] = feature_map.transform(inputs)
        read = []
        for group in self.networks:
            if group.reader is not None:
                read.append(self._tokens(group.reader, inputs))
            else:
                assert examples is not None
                read.append(examples)
        return Batch(examples, features, read)

    def _examples(self, raws: Sequence[Any], names: Sequence[str]) -> Examples:
        """Return inputs as the network of `model:` reads them: pixels, features of the rows of a
        table, or token numbers.
        """
        if self.about.kind == "image":
            channels, size, _ = self.about.shape
            return Examples(decode_all(raws, Pixels(channels, size), names), None)
        if isinstance(self._encoder, Features):
            return Examples(torch.from_numpy(self._encoder.encode_rows(raws, names)), None)
        assert self._encoder is not None
        return self._tokens(self._encoder, raws)

    def _tokens(self, reader: Reader, texts: Sequence[str]) -> Examples:
        """Return texts as token numbers, with their lengths if batches are cut to them."""
        rows, lengths = reader.rows(texts)
        bucket = self.config.data.buckets
        if not bucket:
            return Examples(rows, None)
        return Examples(rows, None, lengths, bucket)

    def count_used(self, raws: Sequence[Any], batch: Batch, used: npt.NDArray[np.uint64]) -> int:
        """Count the inputs of a batch that are among `used`, the digests that `used_examples` reads
        from the run folder. Rows of a table are compared by their features.
        """
        if self.about.kind == "table":
            assert batch.examples is not None
            raws = list(rows_bytes(batch.examples))
        return int(are_in(digests_of(raws), used).sum())

    def scores(self, batch: Batch) -> Tensor:
        """Return the raw scores of a batch, n x classes: before they are divided by the
        temperature.
        """
        shares = []
        scores = []  # of each group of networks, then of each simple model
        for group, examples in zip(self.networks, batch.read, strict=True):
            with enough_memory(
                self._device, "free some of it, or use another device (--device cpu)"
            ):
                raw = outputs_of(group.module, examples, self._device, batch_size=AT_ONCE, raw=True)
            shares.append(group.share)
            scores.append(raw)
        for member in self.simple:
            raw = torch.from_numpy(member.model.scores(batch.features[member.features])).float()
            shares.append(member.share)
            scores.append(raw)
        if len(scores) == 1:
            return scores[0]
        return mean_scores(scores, shares, several=self.several)

    def labels(self, scores: Tensor, threshold: float = THRESHOLD) -> list[str] | list[list[str]]:
        """Return labels from raw scores, as an evaluation does: a temperature changes no label at
        the usual threshold.
        """
        if not self.several:
            return [self.classes[number] for number in scores.argmax(1).tolist()]
        # A probability is above the threshold where score / temperature is above its logit.
        least = float(torch.logit(torch.tensor(threshold, dtype=torch.float64)))
        labels = []
        for row in (scores > self.temperature * least).tolist():
            labels.append([name for name, has in zip(self.classes, row, strict=True) if has])
        return labels

    def probabilities(self, scores: Tensor) -> npt.NDArray[np.float32]:
        """Return probabilities from raw scores."""
        probabilities = probabilities_of(scores / self.temperature, several=self.several)
        array: npt.NDArray[np.float32] = probabilities.numpy()
        return array

    def _batches(self, inputs: Any) -> Iterator[Tensor]:
        """Yield the raw scores of a user's inputs, batch by batch."""
        raws = self._raws(inputs)
        for start in range(0, len(raws), AT_ONCE):
            some = raws[start : start + AT_ONCE]
            names = [f"input {start + position}" for position in range(len(some))]
            yield self.scores(self.batch(some, names))

    def _raws(self, inputs: Any) -> list[Any]:
        """Return what a user hands in as a list: one input, a list of inputs, an array of images,
        or a data frame.
        """
        column = self.config.data.primary.input
        if isinstance(self._encoder, Features):
            return given.table_rows(inputs, self._encoder)
        if self.about.kind == "text":
            return given.texts(inputs, column)
        return given.images(inputs, column, self.about.shape[0])

    def seconds_each(self, batch: Callable[[], Batch], count: int) -> float:
        """Return the seconds of one prediction of a batch of `count` inputs, the fastest of three
        tries.
        """
        times = []
        for _ in range(4):  # libraries choose their kernels in the first try
            began = time.perf_counter()
            self.scores(batch())
            times.append(time.perf_counter() - began)
        return min(times[1:]) / count

    def export(self, path: Path) -> None:
        """Write `module` as one `torch.export` program, with any number of inputs in a batch; the
        classes are in the file.

        The program reads scaled images (n x C x H x W, uint8), padded token numbers of texts (n x
        max_length, int32), or features of the rows of a table (n x F, float32). A model of which
        some member is no network, or reads other tensors, is refused.
        """
        module = self.module
        instead = "use `attittud predict`, attittud_lab.load in Python"
        if len(self.networks) > 1:
            problem = "this model has networks that read texts in different ways, so they cannot be exported as one program"
            raise InputError(f"{problem}; {instead}, or train with portfolio.learners=[finetuned]")
        if module is None or self.simple:
            problem = (
                "this model has members that are not networks, and only networks can be exported"
            )
            raise InputError(f"{problem}; {instead}, or train with portfolio.learners=[network]")
        try:
            with replacing(path, "choose another file with --export FILE") as part:
                _write_program(module.cpu(), self._example(), self.classes, part)
        except InputError:
            raise
        except Exception as error:  # whatever torch cannot trace
            why = f"{type(error).__name__}: {one_line(error, 300)}"
            problem = f"model {self.config.model.name} cannot be exported ({why})"
            advice = "use `attittud predict`, or attittud_lab.load in Python"
            raise InputError(f"{problem}; {advice}") from None
        finally:
            module.to(self._device)

    def _example(self) -> Tensor:
        """Return three inputs such as `export` describes them, to trace the program with."""
        if self.about.kind == "image":
            return torch.randint(0, 256, (3, *self.about.shape), dtype=torch.uint8)
        if isinstance(self._encoder, Features):
            return torch.linspace(-2, 2, 3 * self._encoder.width).view(3, -1)
        tokenizer = self.networks[0].reader or self._encoder
        assert tokenizer is not None
        rows, _ = tokenizer.rows(["a text", "another one that is longer", ""])
        shape = (len(rows), self.config.data.max_length)
        example = torch.full(shape, tokenizer.words.pad, dtype=rows.dtype)
        example[:, : rows.shape[1]] = rows
        return example


def _write_program(module: nn.Module, example: Tensor, classes: Sequence[str], path: Path) -> None:
    """Export a module on the CPU, and check that the program gives the same probabilities."""
    shapes = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about torch's own changes
        program = torch.export.export(module, (example,), dynamic_shapes=shapes)
        if not torch.allclose(program.module()(example), module(example), rtol=1e-4, atol=1e-5):
            raise RuntimeError("the program gives other probabilities than the model")
        with path.open("wb") as file:
            torch.export.save(program, file, extra_files={"classes.json": json.dumps(classes)})
