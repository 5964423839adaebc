"""model.json: what predictions need from a finished run besides its configuration and its weights.

A model is the weighted mean of its members; a run that trained one network has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath

from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config, Kind
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import read_format, write_json
from attittud_lab.runs.result import typed

NAME = "model.json"
WEIGHTS = "weights.safetensors"
VERSION = 1
"""The format of model.json. Files in any other format are refused."""


class Member(TypedDict):
    """One network of a model."""

    weights: str
    """Its file in the run folder."""
    share: float
    """The weight of its probabilities in the mean."""


@dataclass(frozen=True)
class ModelFile:
    """The content of model.json."""

    kind: Kind
    shape: list[int]
    """C x H x W of an image, the number of tokens of a text, the number of features of a row."""
    classes: list[str]
    several: bool
    """Whether an example may have several of the classes at once."""
    white: int | None = None
    """The value of a white pixel in grey pictures of more than 8 bits; None if training had no such picture."""
    members: list[Member] = field(default_factory=lambda: [Member(weights=WEIGHTS, share=1.0)])
    temperature: float | None = None
    """Divides the scores, so that probabilities are calibrated; None where that could not be fitted."""
    calibrated_on: int = 0
    """Held-out examples that the temperature was fitted on."""
    network: str | None = None
    """A folder in the run folder with the description and the tokenizer of a network that another library builds."""
    bytes: int | None = None
    """Size of all members together."""
    seconds: float | None = None
    """Time of one prediction in a small batch, on the device that trained it."""
    version: int = VERSION

    def write(self, folder: Path) -> None:
        write_json(folder / NAME, vars(self))


def cost(folder: Path) -> str:
    """Size and time of the model of a run, in words; empty where they were not measured."""
    found = _stored(folder / NAME) if (folder / NAME).is_file() else None
    if found is None or found.bytes is None or found.seconds is None:
        return ""
    return f"{size_words(found.bytes)}, {found.seconds * 1e3:.2g} ms for a prediction"


def size_words(count: float) -> str:
    """Format a number of bytes for people."""
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"


def read_model(folder: Path) -> tuple[ModelFile, Config]:
    """What the folder of a finished run says about its model, and its configuration."""
    _check_finished(folder)
    path = folder / "config.yaml"
    try:  # not `load`: it would follow `base:` out of the folder
        config = loads(path.read_text(encoding="utf-8"), name=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read ({one_line(error)}); restore it from a backup, or train again"
        ) from None
    path = folder / NAME
    if not path.is_file():
        raise InputError(f"{path}: is missing; restore it from a backup, or train again with --fresh")
    try:
        found = _stored(path)
        sizes = {"image": 3, "text": 1, "table": 1}
        if len(found.shape) != sizes[found.kind] or min(found.shape) < 1 or not found.classes or not found.members:
            raise ValueError("shape, classes or members do not describe a model")
        for name in [member["weights"] for member in found.members] + [found.network or "network"]:
            if PurePath(name).name != name or name in ("", ".", ".."):
                raise ValueError(f"{name[:80]!r} is not a file in the folder itself")
        if not all(0 < member["share"] < float("inf") for member in found.members):
            raise ValueError("a share is not a positive number")
        if found.white is not None and found.white < 1:
            raise ValueError("white is not a positive number")
        if found.temperature is not None and not 0 < found.temperature < float("inf"):
            raise ValueError("temperature is not a positive number")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        found_out = f"{folder}: its files do not describe a model ({type(error).__name__}: {one_line(error, 200)})"
        raise InputError(f"{found_out}; restore them from a backup, or train again with --fresh") from None
    return found, config


def _check_finished(folder: Path) -> None:
    if (folder / "result.json").is_file():
        return
    if (folder / "run.json").is_file():
        cure = "wait for it if it is still training; if not, give its `attittud train` command again"
        raise InputError(f"{folder}: the run is not finished; {cure}")
    below = (sorted(folder.glob(f"{'*/' * depth}result.json")) for depth in range(1, 4))
    inside = next((found[0].parent for found in below if found), None)
    hint = f"; did you mean {inside}?" if inside else ""
    if (folder / "comparison.json").is_file():
        cure = "give the folder of one of its runs: those below runs/ that have a result.json"
        raise InputError(f"{folder}: is the folder of a comparison, not of a run; {cure}")
    raise InputError(f"{folder}: is not the folder of a run; give the folder that `attittud train` printed last{hint}")


def _stored(path: Path) -> ModelFile:
    return ModelFile(**typed(ModelFile, read_format(path, VERSION)))
