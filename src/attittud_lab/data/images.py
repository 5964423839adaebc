"""Pictures of any format as uint8 pixels of one shape, decided once for all pictures and the same
in prediction.

A picture is turned as its EXIF orientation says, cut to the middle square and scaled. Transparent
pixels are laid on white. Pictures with more than 8 bits per pixel are refused: nothing in the file
says which value is white.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from attittud_lab.data.parts import Part
from attittud_lab.data.source import Raw, Rows, check_memory
from attittud_lab.data.splits import strata
from attittud_lab.errors import InputError, one_line

LARGEST = 64_000_000
"""The most pixels of an image that is decoded; a file of a few kB can declare billions."""
LOOKED_AT = 256
"""About how many pictures of a part are looked at, the same number of every class."""
_WHITE = (255, 255, 255, 255)
_GREY = ("1", "L", "LA", "La")
_AT_ONCE = 64  # images per task of a thread: decoding a small one is as fast as handing it out
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


@dataclass(frozen=True)
class Pixels:
    """The common shape that every image is scaled to."""

    channels: int
    size: int

    @classmethod
    def common(cls, looks: Sequence[Sequence[tuple[int, bool]]], size: int | None) -> Pixels:
        """Decide the shape from looks at every source: grey only if all pictures are grey, and the
        usual size of the first source.
        """
        sides = Counter(side for side, _ in looks[0])
        usual = max(sides, key=lambda side: (sides[side], side))
        all_grey = all(grey for source in looks for _, grey in source)
        return cls(1 if all_grey else 3, size or usual)

    def check(self, count: int) -> None:
        """Refuse a size for which `count` images take too much memory, before any is decoded."""
        what = f"{count:,} images of {self.size} x {self.size} pixels (data.image_size)"
        check_memory(count * self.channels * self.size**2, what, "lower data.image_size")


def look_at(part: Part) -> list[tuple[int, bool]]:
    """Return the shorter side of some pictures of a part, and whether each is grey."""
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


def _look(raw: Raw, where: str) -> tuple[int, bool]:
    if isinstance(raw, np.ndarray):
        return min(raw.shape[1:]), raw.shape[0] == 1
    with _open(raw, where) as image:
        return min(image.size), image.mode in _GREY


def _open(raw: Raw, where: str) -> Image.Image:
    """Open an encoded image without decoding it."""
    name = _name(raw, where)
    try:
        with warnings.catch_warnings():
            # Our own limit below is stricter than pillow's warning.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            source = io.BytesIO(raw) if isinstance(raw, bytes) else str(raw)
            image = Image.open(source, formats=_FORMATS)
    except Exception as error:  # every format raises its own errors
        problem = f"{name} cannot be read as an image ({one_line(error, 200)})"
        raise InputError(f"{problem}; repair or remove it") from None
    if image.width * image.height > LARGEST:
        image.close()
        problem = f"{name} declares {image.width} x {image.height} pixels"
        raise InputError(f"{problem}, more than {LARGEST:,}; scale it down or remove it")
    return image


def _name(raw: Raw | Image.Image, where: str) -> str:
    """Return what a message calls an image."""
    return str(raw) if isinstance(raw, Path) else f"{where}: an image"


def decode(raw: Raw | Image.Image, pixels: Pixels, where: str) -> npt.NDArray[np.uint8]:
    """Return one image as C x H x W. An image that a caller has opened stays open and as it is."""
    shape = (pixels.size, pixels.size)
    mode = "L" if pixels.channels == 1 else "RGB"
    if isinstance(raw, np.ndarray):
        if raw.shape == (pixels.channels, *shape):
            return raw
        grey = raw.shape[0] == 1
        image = Image.fromarray(raw[0] if grey else raw.transpose(1, 2, 0)).convert(mode)
    else:
        file = raw if isinstance(raw, Image.Image) else _open(raw, where)
        try:
            if file is not raw:
                # JPEG can be decoded at a half, a quarter or an eighth of its size.
                file.draft(mode, shape)
            file.load()
            image = _upright(_eight_bits(file, _name(raw, where)).convert(mode), file)
        except InputError:
            raise
        except Exception as error:  # every format raises its own errors
            problem = f"{_name(raw, where)} is damaged ({one_line(error, 200)})"
            raise InputError(f"{problem}; repair or remove it") from None
        finally:
            if file is not raw:
                file.close()
    if image.size != shape:
        # The middle square: scaling both sides differently would distort the picture.
        side = min(image.size)
        left = (image.width - side) // 2
        top = (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        image = square.resize(shape, Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if pixels.channels == 1 else array.transpose(2, 0, 1)


def _upright(image: Image.Image, file: Image.Image) -> Image.Image:
    """Turn an image as the EXIF data of its file say; damaged EXIF data do not count."""
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(file.getexif().get(0x0112, 1))
    except Exception:  # every format raises its own errors
        return image
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Return an image of 8 bits without transparency."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        problem = f"{name} has grey levels of more than 8 bits, and its white is not known"
        raise InputError(f"{problem}; save such pictures with 8 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, _WHITE)
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB") if image.mode == "CMYK" else image


def decode_all(
    raws: Sequence[Raw | Image.Image], pixels: Pixels, where: str | Sequence[str]
) -> Tensor:
    """Decode n x C x H x W in a few threads (pillow works outside of Python's lock). Error messages
    begin with `where`.
    """
    places = [where] * len(raws) if isinstance(where, str) else where
    out = np.empty((len(raws), pixels.channels, pixels.size, pixels.size), dtype=np.uint8)

    def decode_some(start: int) -> None:
        for position in range(start, min(start + _AT_ONCE, len(raws))):
            out[position] = decode(raws[position], pixels, places[position])

    with ThreadPoolExecutor() as pool:
        list(pool.map(decode_some, range(0, len(raws), _AT_ONCE)))
    return torch.from_numpy(out)
