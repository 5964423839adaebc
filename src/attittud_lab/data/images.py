"""Images to uint8 tensors. Broken ones, and those made to fill the memory, are refused by name."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from attittud_lab.data.listing import Listing, Raw, Rows
from attittud_lab.errors import InputError, one_line

LARGEST = 64_000_000
"""Pixels of an image that is still decoded; a file of a few kB can announce billions."""
_AT_ONCE = 256  # images; to hand them out one by one takes as long as to decode small ones
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


class _Part(Protocol):
    listing: Listing
    rows: Rows


@dataclass(frozen=True)
class Pixels:
    """The common shape that every image is brought to."""

    channels: int
    size: int

    @classmethod
    def common(cls, parts: Sequence[_Part], size: int | None) -> Pixels:
        """From a look at some images: grey only if all are grey, the most common size of the first part."""
        sizes: list[int] = []
        grey = True
        for position, part in enumerate(parts):
            for raw in part.listing.fetch(part.rows[:32]):
                width, height, is_grey = _look(raw, part.listing.where)
                grey = grey and is_grey
                if position == 0:
                    sizes.append(min(width, height))
        return cls(1 if grey else 3, size or Counter(sizes).most_common(1)[0][0])


def _look(raw: Raw, where: str) -> tuple[int, int, bool]:
    if isinstance(raw, np.ndarray):
        return raw.shape[2], raw.shape[1], raw.shape[0] == 1
    with _open(raw, where) as image:
        return image.width, image.height, image.mode in ("1", "L", "I;16", "LA")


def _open(raw: Raw, where: str) -> Image.Image:
    name = f"{where}: {raw}" if isinstance(raw, Path) else f"{where}: an image"
    try:
        with warnings.catch_warnings():
            # Our own limit below is stricter than the size from which pillow warns.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(raw) if isinstance(raw, bytes) else str(raw), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise InputError(
            f"{name} announces more pixels than fit into memory (a decompression bomb); remove it"
        ) from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else one_line(error)
        raise InputError(f"{name} cannot be read ({reason}); repair or remove it") from None
    if image.width * image.height > LARGEST:
        size = f"{image.width} x {image.height}"
        image.close()
        raise InputError(
            f"{name} announces {size} pixels, above the limit of {LARGEST:,} (a decompression bomb?); scale it down or remove it"
        )
    return image


def decode(raw: Raw, pixels: Pixels, where: str) -> npt.NDArray[np.uint8]:
    """One image as C x H x W."""
    if isinstance(raw, np.ndarray) and raw.shape == (pixels.channels, pixels.size, pixels.size):
        return raw
    mode = "L" if pixels.channels == 1 else "RGB"
    if isinstance(raw, np.ndarray):
        image = Image.fromarray(raw[0] if raw.shape[0] == 1 else raw.transpose(1, 2, 0)).convert(mode)
    else:
        try:
            with _open(raw, where) as file:
                # JPEG can be decoded at a half, a quarter or an eighth of its size, never below the one that is wanted.
                file.draft(mode, (pixels.size, pixels.size))
                image = file.convert(mode)
        except (OSError, SyntaxError, ValueError) as error:
            name = f"{where}: {raw}" if isinstance(raw, Path) else f"{where}: an image"
            raise InputError(f"{name} is damaged ({one_line(error)}); repair or remove it") from None
    if image.size != (pixels.size, pixels.size):
        # The middle square: scaling the sides apart would distort what is in the picture.
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize(
            (pixels.size, pixels.size), Image.Resampling.BILINEAR
        )
    array = np.asarray(image)
    return array[None] if pixels.channels == 1 else array.transpose(2, 0, 1)


def decode_all(raws: Sequence[Raw], pixels: Pixels, where: str) -> Tensor:
    """n x C x H x W, decoded by a few threads (pillow works outside of Python's lock)."""
    out = np.empty((len(raws), pixels.channels, pixels.size, pixels.size), dtype=np.uint8)

    def some(start: int) -> None:
        for position in range(start, min(start + _AT_ONCE, len(raws))):
            out[position] = decode(raws[position], pixels, where)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(some, range(0, len(raws), _AT_ONCE)):
            pass
    return torch.from_numpy(out)
