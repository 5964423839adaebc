"""Pictures of any format as uint8 pixels of one shape, decided once for all pictures and the same
in prediction.

A picture is turned as its EXIF orientation says, cut to the middle square and scaled. Transparent
pixels are laid on white. Grey pictures of more than 8 bits are scaled with one factor for a whole
source.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from attittud_lab.data.parts import Part
from attittud_lab.data.source import Raw, Rows, check_memory, warn_once
from attittud_lab.data.splits import strata
from attittud_lab.errors import InputError, one_line

LARGEST = 64_000_000
"""The most pixels of an image that is decoded; a file of a few kB can declare billions."""
MOST_ENLARGED = 64
"""The most that the sides of an image may be stretched; more only repeats its pixels."""
LOOKED_AT = 256
"""About how many pictures of a part are looked at, the same number of every class."""
DEPTHS = (8, 10, 12, 14, 16)
"""Bits of a grey pixel that cameras and scanners have."""
_GROUND = (255, 255, 255, 255)  # transparent pixels are laid on white
_GREY = ("1", "L", "LA", "La", "I", "F")
# images per task of a thread; handing them out one by one takes as long as decoding small ones
_AT_ONCE = 64
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How to undo each EXIF orientation; 1 is upright."""


@dataclass(frozen=True)
class Pixels:
    """The common shape that every image is scaled to, and the brightness of deep grey pictures."""

    channels: int
    size: int
    usual: int = 0
    """The size that most images have."""
    white: int | None = None
    """The value of a white pixel in grey pictures of more than 8 bits (1 for fractions).

    None if the source has no such picture; then it is the largest value that the format can hold.
    """

    @classmethod
    def common(cls, looks: Sequence[Sequence[PictureLook]], size: int | None) -> Pixels:
        """Decide the shape from looks at every source: grey only if all are grey, and the usual
        size of the first source.
        """
        sides = Counter(look.side for look in looks[0])
        usual = max(sides, key=lambda side: (sides[side], side))
        all_grey = all(look.grey for some in looks for look in some)
        return cls(1 if all_grey else 3, size or usual, usual)

    def check(self, count: int) -> None:
        """Refuse a size for which `count` images take too much memory, before any is decoded."""
        most = MOST_ENLARGED * self.usual
        if self.size > most:
            what = f"images whose shorter side has {self.usual} pixels"
            problem = f"data.image_size: {what} would be stretched to {self.size} x {self.size}"
            raise InputError(f"{problem}; give at most {most}, since more only repeats pixels")
        what = f"{count:,} images of {self.size} x {self.size} pixels (data.image_size)"
        check_memory(
            count * self.channels * self.size**2,
            what,
            "lower data.image_size, or give fewer images",
        )


@dataclass(frozen=True)
class PictureLook:
    """What one picture shows before all are decoded."""

    side: int
    """The shorter side."""
    grey: bool
    brightest: float | None = None
    """The largest value of a grey picture of more than 8 bits; None for other pictures."""
    fractions: bool = False
    """Whether its values are no whole numbers."""


def look_at(part: Part) -> list[PictureLook]:
    """PictureLook at some pictures of a part: the same number of every class, drawn by a fixed
    seed.
    """
    where = part.listing.where
    return [_look(raw, where) for raw in part.listing.fetch(part.rows[_sample(part)])]


def _sample(part: Part) -> Rows:
    """Return the positions of about `LOOKED_AT` pictures, at least one of every class."""
    generator = np.random.default_rng(0)
    classes = strata(part.labels, len(part.rows))
    numbers = np.unique(classes)
    each = max(1, LOOKED_AT // max(1, len(numbers)))
    drawn = [generator.permutation(np.flatnonzero(classes == number))[:each] for number in numbers]
    return np.sort(np.concatenate(drawn))


def white_of(looks: Sequence[PictureLook], where: str) -> int | None:
    """Return the value of a white pixel for a source, and say it once; None without grey pictures
    of more than 8 bits.
    """
    deep = [look for look in looks if look.brightest is not None]
    if not deep:
        return None
    if len({look.fractions for look in deep}) > 1:
        raise InputError(
            f"{where}: some grey pictures hold whole numbers, others fractions; save them all alike"
        )
    brightest = max(look.brightest or 0 for look in deep)
    levels = [(1 << bits) - 1 for bits in DEPTHS]
    if deep[0].fractions:
        levels = [1, *levels]
    white = next((level for level in levels if brightest <= level), None)
    if white is None:
        raise InputError(
            f"{where}: a grey pixel has the value {brightest:g}, above {levels[-1]}; save them with 16 bits"
        )
    warn_once(
        f"{where}: grey pictures of more than 8 bits, of which the value {white} counts as white"
    )
    return white


def _look(raw: Raw, where: str) -> PictureLook:
    if isinstance(raw, np.ndarray):
        return PictureLook(min(raw.shape[1:]), raw.shape[0] == 1)
    with _open(raw, where) as image:
        side = min(image.size)
        if not _is_deep(image):
            return PictureLook(side, image.mode in _GREY)
        try:
            brightest = float(np.asarray(image).max())
        except Exception as error:  # every format raises its own errors
            raise _damaged(raw, where, error) from None
        return PictureLook(side, True, brightest, image.mode == "F")


def _is_deep(image: Image.Image) -> bool:
    """Whether this is a grey picture whose pixels may be above 255."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _open(raw: Raw, where: str) -> Image.Image:
    name = _said(raw, where)
    try:
        with warnings.catch_warnings():
            # Our own limit below is stricter than pillow's warning.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(
                io.BytesIO(raw) if isinstance(raw, bytes) else str(raw), formats=_FORMATS
            )
    except Image.DecompressionBombError:
        raise InputError(
            f"{name} declares more pixels than memory holds (a decompression bomb); remove it"
        ) from None
    except Exception as error:  # every format raises its own errors
        if isinstance(error, UnidentifiedImageError):
            reason = "it is not an image"
        else:
            reason = one_line(error)
        raise InputError(f"{name} cannot be read ({reason}); repair or remove it") from None
    if image.width * image.height > LARGEST:
        image.close()
        problem = (
            f"{name} declares {image.width} x {image.height} pixels, above the limit of {LARGEST:,}"
        )
        raise InputError(f"{problem} (a decompression bomb?); scale it down or remove it")
    return image


def _said(raw: Raw | Image.Image, where: str) -> str:
    if isinstance(raw, Path) and str(raw) == where:  # a file that the user named
        return where
    return f"{where}: {raw}" if isinstance(raw, Path) else f"{where}: an image"


def _damaged(raw: Raw | Image.Image, where: str, error: Exception) -> InputError:
    return InputError(
        f"{_said(raw, where)} is damaged ({one_line(error, 200)}); repair or remove it"
    )


def decode(raw: Raw | Image.Image, pixels: Pixels, where: str) -> npt.NDArray[np.uint8]:
    """Return one image as C x H x W."""
    shape = (pixels.size, pixels.size)
    if isinstance(raw, np.ndarray) and raw.shape == (pixels.channels, *shape):
        return raw
    mode = "L" if pixels.channels == 1 else "RGB"
    if isinstance(raw, np.ndarray):
        image = Image.fromarray(raw[0] if raw.shape[0] == 1 else raw.transpose(1, 2, 0)).convert(
            mode
        )
    else:
        # An image that a caller has opened stays open and as it is.
        with nullcontext(raw) if isinstance(raw, Image.Image) else _open(raw, where) as file:
            try:
                if file is not raw:
                    # JPEG can be decoded at a half, a quarter or an eighth of its size, but not
                    # below the size wanted.
                    file.draft(mode, shape)
                file.load()
                image = _flat(file, pixels.white).convert(mode)
                turn = _TURNS.get(_orientation(file))
            except Exception as error:  # as above
                raise _damaged(raw, where, error) from None
            if turn is not None:
                image = image.transpose(turn)
    if image.size != shape:
        # The middle square: scaling both sides differently would distort the picture.
        side = min(image.size)
        left = (image.width - side) // 2
        top = (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize(
            shape, Image.Resampling.BILINEAR
        )
    array = np.asarray(image)
    return array[None] if pixels.channels == 1 else array.transpose(2, 0, 1)


def _orientation(image: Image.Image) -> Any:
    """Return the EXIF orientation; 1 (upright) if there is none, or if the EXIF data are
    damaged.
    """
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # every format raises its own errors
        return 1


def _flat(image: Image.Image, white: int | None) -> Image.Image:
    """Return an image of 8 bits without transparency."""
    if _is_deep(image):
        return _eight_bits(image, white)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, _GROUND), image).convert("RGB")
    return image.convert("RGB") if image.mode == "CMYK" else image


def _eight_bits(image: Image.Image, white: int | None) -> Image.Image:
    """Scale a deep grey image so that `white` becomes 255; larger values are cut."""
    fractions = image.mode == "F"
    if white is None:
        white = 1 if fractions else 65535
    values = np.asarray(image).astype(np.float64)
    low, high = values.min(), values.max()
    other_scale = 0 < high <= 1 < white if fractions else white == 1
    if not (np.isfinite(values).all() and low >= 0) or other_scale:
        raise ValueError(f"its pixels go from {low:g} to {high:g}, not from 0 to {white}")
    if high > white:
        warn_once(
            f"some pixels of grey pictures are brighter than white, which has the value {white}; they are cut"
        )
    scaled = np.rint(np.minimum(values, white) * (255 / white))
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled[values == transparent] = 255
    return Image.fromarray(scaled.astype(np.uint8))


def decode_all(
    raws: Sequence[Raw | Image.Image], pixels: Pixels, where: str | Sequence[str]
) -> Tensor:
    """Decode n x C x H x W in a few threads (pillow works outside of Python's lock). Error messages
    begin with `where`.
    """
    places = [where] * len(raws) if isinstance(where, str) else where
    out = np.empty((len(raws), pixels.channels, pixels.size, pixels.size), dtype=np.uint8)

    def some(start: int) -> None:
        for position in range(start, min(start + _AT_ONCE, len(raws))):
            out[position] = decode(raws[position], pixels, places[position])

    with ThreadPoolExecutor() as pool:
        list(pool.map(some, range(0, len(raws), _AT_ONCE)))
    return torch.from_numpy(out)
