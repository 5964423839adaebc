"""model.json: what predictions need from a finished run besides its configuration and its weights.

A model is the weighted mean of its members; a run that trained one network has one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NotRequired  # pydantic asks for this one before Python 3.12

from typing_extensions import TypedDict

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config, Kind
from attittud_lab.data.prepare import DIGESTS
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import read_format, read_json, write_json
from attittud_lab.runs.result import typed

NAME = "model.json"
WEIGHTS = "weights.safetensors"
CONFIG = "config.yaml"
DATA = "data.json"
DIGESTS_IN_DATA = f"{DIGESTS} in {DATA}"
VERSION = 4
"""The format of model.json. Files in any other format are refused."""
CURE = "restore it from a backup, or train again with --fresh"


class Member(TypedDict):
    """One network or simple model among those whose mean is the model."""

    kind: Literal["network", "simple"]
    weights: str
    """Its file of arrays in the run folder."""
    share: float
    """The weight of its probabilities in the mean."""
    model: NotRequired[dict[str, Any]]
    """The settings of a network that is not the one of `model:` in config.yaml."""
    network: NotRequired[str]
    """The folder with its description and its tokenizer, if another library builds it."""
    about: NotRequired[str]
    """The file that describes a simple model."""
    features: NotRequired[str]
    """The NAME of its features, described in features-NAME.json and features-NAME.safetensors."""


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
    """The value of white in grey pictures of more than 8 bits; None without such pictures."""
    members: list[Member] = field(
        default_factory=lambda: [Member(kind="network", weights=WEIGHTS, share=1.0)]
    )
    temperature: float | None = None
    """Divides the scores, which calibrates the probabilities; None where it could not be fitted."""
    calibrated_on: int = 0
    """Held-out examples that the temperature was fitted on."""
    network: str | None = None
    """The folder with the description and tokenizer of a network that another library builds."""
    bytes: int | None = None
    """Size of all members together."""
    seconds: float | None = None
    """Time of one prediction in a small batch, on the device that trained it."""
    sha256: dict[str, str] = field(default_factory=dict)
    """Checksums of the files that predictions read, by name, and of the parts of data.json."""
    checksum: str = ""
    """The checksum of all other entries."""
    version: int = VERSION

    @property
    def files(self) -> list[str]:
        """The files that predictions read besides model.json, data.json and descriptions of
        networks.
        """
        names = []
        for member in self.members:
            names.append(member["weights"])
            if "about" in member:
                names.append(member["about"])
            if "features" in member:
                names += features_files(member["features"])
        return list(dict.fromkeys(names))

    @property
    def folders(self) -> list[str]:
        """The folders in the run folder with descriptions of networks."""
        names = [self.network]
        for member in self.members:
            names.append(member.get("network"))
        return [name for name in names if name is not None]

    def sealed(self, folder: Path) -> ModelFile:
        """Return a copy with the checksums of the files in `folder`, and of its own entries."""
        names = [*self.files, CONFIG, *self._description(folder)]
        sums = {name: file_sha256(folder / name) for name in names}
        about = replace(self, sha256=sums | _data_sums(folder))
        return replace(about, checksum=about.own_checksum())

    def own_checksum(self) -> str:
        """Compute the checksum of all entries but the checksum itself."""
        entries = dict(vars(self))
        del entries["checksum"]
        return _sum_of(entries)

    def check_files(self, folder: Path) -> None:
        """Refuse files that predictions read and that are missing or not as training wrote them."""
        # A description consists of whatever files lie in its folder. So these are listed too: a
        # file that was added since has no checksum.
        names = {*self.files, CONFIG, *self._description(folder), *self.sha256}
        self._check_data(folder)
        for name in sorted(names - {DATA, DIGESTS_IN_DATA}):
            path = folder / name
            if not path.is_file():
                raise InputError(f"{path}: is missing; {CURE}")
            if file_sha256(path) != self.sha256.get(name):
                raise changed(path)

    def _check_data(self, folder: Path) -> None:
        """Refuse another data.json than the one that training wrote.

        Predictions of images and texts go without it, and without its digests, which a person may
        remove. Runs of version 0.2.0 have a checksum of the whole file, for tables alone.
        """
        path = folder / DATA
        if not path.is_file():
            if self.kind == "table":
                raise InputError(f"{path}: is missing; {CURE}")
            return
        checksum = self.sha256.get(DATA)
        if checksum is None and self.kind != "table":
            return
        if checksum == file_sha256(path):  # as runs of version 0.2.0 have it
            return
        parts_match = _data_sums(folder).items() <= self.sha256.items()
        if not parts_match:
            raise changed(path)

    def _description(self, folder: Path) -> list[str]:
        """The files that describe networks which another library builds, by path in the folder."""
        paths: list[Path] = []
        for name in self.folders:
            paths += (folder / name).rglob("*")
        return [path.relative_to(folder).as_posix() for path in sorted(paths) if path.is_file()]

    def write(self, folder: Path) -> None:
        write_json(folder / NAME, vars(self))


def _data_sums(folder: Path) -> dict[str, str]:
    """Checksums of the digests in data.json and of its other entries; none without the file."""
    if not (folder / DATA).is_file():
        return {}
    record = read_json(folder / DATA)
    if not isinstance(record, dict):
        raise changed(folder / DATA)
    digests = record.pop(DIGESTS, None)
    sums = {DATA: _sum_of(record)}
    if digests is not None:
        sums[DIGESTS_IN_DATA] = _sum_of(digests)
    return sums


def _sum_of(entries: Any) -> str:
    """Return the SHA-256 of entries as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def changed(path: Path) -> InputError:
    """The error for a file that differs from the one that training wrote."""
    reason = f"is not as training wrote it (its checksum differs from the one in {NAME})"
    return InputError(f"{path}: {reason}; {CURE}")


def features_files(name: str) -> list[str]:
    """The files that describe the features of simple models: settings, then arrays."""
    return [f"features-{name}.json", f"features-{name}.safetensors"]


def file_sha256(path: Path) -> str:
    """The checksum of a file; about a second for 1 GB."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cost(folder: Path) -> str:
    """Size and time of the model of a run, in words; empty where they were not measured."""
    if not (folder / NAME).is_file():
        return ""
    model = described(folder)
    if model.bytes is None or model.seconds is None:
        return ""
    return f"{size_words(model.bytes)}, {time_words(model.seconds)} for a prediction"


def time_words(seconds: float) -> str:
    """Format the time of a prediction for people."""
    milliseconds = seconds * 1e3
    if milliseconds < 10:
        return f"{milliseconds:.2g} ms"
    return f"{milliseconds:.0f} ms"


def size_words(count: float) -> str:
    """Format a number of bytes for people."""
    if count >= 1e5:
        return f"{count / 1e6:.3g} MB"
    return f"{count / 1e3:.3g} kB"


def read_model(folder: Path) -> tuple[ModelFile, Config]:
    """Return what the folder of a finished run says about its model, and its configuration."""
    _check_finished(folder)
    model = described(folder)  # first, because it says which version wrote the folder
    path = folder / CONFIG
    try:  # not `load`: it would follow `base:` out of the folder
        config = loads(path.read_text(encoding="utf-8"), name=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); {CURE}") from None
    model.check_files(folder)
    return model, config


def described(folder: Path) -> ModelFile:
    """Read model.json of a folder; refuses one that was changed."""
    path = folder / NAME
    if not path.is_file():
        raise InputError(f"{path}: is missing; {CURE}")
    try:
        model = _stored(path)
    except ValueError as error:
        raise InputError(f"{path}: describes no model ({one_line(error, 200)}); {CURE}") from None
    if model.checksum != model.own_checksum():
        raise changed(path)
    return model


def _check_finished(folder: Path) -> None:
    """Refuse a folder without a result, and name the folder that was probably meant."""
    if (folder / "result.json").is_file():
        return
    if (folder / "run.json").is_file():
        advice = "wait for it, or give its `attittud train` command again"
        raise InputError(f"{folder}: the run is not finished; {advice}")
    if (folder / "comparison.json").is_file():
        advice = "give the folder of one of its runs: those below runs/ that have a result.json"
        raise InputError(f"{folder}: is the folder of a comparison, not of a run; {advice}")
    advice = "give the folder that `attittud train` printed last"
    for below in ("*", "*/*", "*/*/*"):  # as in runs/JOB/STRATEGY/seed-0
        inside = sorted(folder.glob(f"{below}/result.json"))
        if inside:
            advice += f"; did you mean {inside[0].parent}?"
            break
    raise InputError(f"{folder}: is not the folder of a run; {advice}")


def _stored(path: Path) -> ModelFile:
    """Read model.json without comparing its checksum; ValueError for entries of another type."""
    return ModelFile(**typed(ModelFile, read_format(path, VERSION)))
