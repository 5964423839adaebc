"""What a person gives to `Model.predict` in Python, as a list: one input, several, an array of
images, or a data frame.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from attittud_lab.data.features import Features
from attittud_lab.data.rows import INPUTS, content, find_column
from attittud_lab.data.source import Raw
from attittud_lab.data.spelling import HALF
from attittud_lab.errors import InputError, listed

_IMAGES = "a path, bytes of an image file, a PIL image or an array of pixels"


def table_rows(inputs: Any, features: Features) -> list[Mapping[str, Any]]:
    """Return the rows of a table as mappings of columns to cells.

    `inputs` are mappings, a data frame, or an array (n x length) if the only column has lists.
    Refused are other inputs, and texts with half a character.
    """
    names = [column.name for column in features.columns]
    if isinstance(inputs, (np.ndarray, Tensor)) and inputs.ndim == 2 and len(names) == 1:
        return [{names[0]: row.tolist()} for row in inputs]
    frame = "mappings or a data frame with the columns"
    advice = f"the model reads rows of a table; give {frame} {listed(names, 5)}"
    rows = _several(inputs, advice)
    if not all(isinstance(row, Mapping) for row in rows):
        raise InputError(advice)
    for position, row in enumerate(rows):
        for name in names:
            _check_whole(row.get(name), f"input {position}, column {name!r},")
    return rows


def texts(inputs: Any, column: str | None) -> list[str]:
    """Return texts, or the cells of the input column of mappings and data frames."""
    advice = "the model reads texts; give strings"
    cells = _cells(inputs, column, advice)
    for position, item in enumerate(cells):
        if not isinstance(item, str):
            raise InputError(f"input {position} is a {type(item).__name__}, but {advice}")
        _check_whole(item, f"input {position}")
    return list(map(str, cells))


def images(inputs: Any, column: str | None, channels: int) -> list[Any]:
    """Return images in any form, or the cells of the input column of mappings and data frames;
    arrays become C x H x W.
    """
    if isinstance(inputs, Tensor):
        inputs = inputs.detach().cpu().numpy()
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "OUT":
        return list(_pixels(inputs, channels))
    cells = _cells(inputs, column, f"the model reads images; give {_IMAGES}, or a list of them")
    return [_image(position, item) for position, item in enumerate(cells)]


def _check_whole(cell: Any, culprit: str) -> None:
    """Refuse a text with half a character."""
    if not isinstance(cell, str):
        return
    half = HALF.search(cell)
    if half:
        problem = f"{culprit} has half a character (U+{ord(half[0]):X}, a lone surrogate)"
        advice = "decode it again, or remove the character"
        raise InputError(f"{problem}, which no encoding of text has; {advice}")


def _several(inputs: Any, advice: str) -> list[Any]:
    """Return the single inputs; the rows of a data frame are mappings. A data frame with two columns
    of one name is refused; `advice` ends the error for what is neither.
    """
    if isinstance(inputs, (str, os.PathLike, bytes, Image.Image, Mapping)):
        return [inputs]
    names = getattr(inputs, "column_names", getattr(inputs, "columns", ()))
    for name in names:
        find_column(list(names), name, (), "the data frame")  # refuses a second one of the name
    try:
        if hasattr(inputs, "to_pylist"):  # of pyarrow
            return list(inputs.to_pylist())
        if hasattr(inputs, "to_dicts"):  # of polars
            return list(inputs.to_dicts())
        if len(names):  # of pandas
            return list(inputs.to_dict("records"))
        return list(inputs)
    except TypeError:
        raise InputError(f"the inputs are a {type(inputs).__name__}; {advice}") from None


def _cells(inputs: Any, column: str | None, advice: str) -> list[Any]:
    """Return the single inputs; mappings and data frames have them in one column."""
    cells = []
    for position, item in enumerate(_several(inputs, advice)):
        cell = item
        is_hub_image = isinstance(item, Mapping) and set(item) == {"bytes", "path"}
        if isinstance(item, Mapping) and not is_hub_image:
            cell = item[_column(list(item), column, f"input {position}")]
        cells.append(content(cell))
    return cells


def _column(names: Sequence[Any], chosen: str | None, where: str) -> str:
    """Return the column of the inputs: the one of the run, or one of the usual names."""
    column = find_column(names, chosen, INPUTS, where)
    if column is None:
        called = chosen or f"{', '.join(INPUTS[:-1])} or {INPUTS[-1]}"
        problem = f"{where} needs one column that is called {called}"
        advice = "rename the column of the inputs, or give its cells as a list"
        raise InputError(f"{problem}; its columns are {listed(names) or 'none'}; {advice}")
    return column


def _image(position: int, item: Any) -> Raw | Image.Image:
    """Return one image: pixels as C x H x W, a path, bytes or an opened image."""
    if isinstance(item, Tensor):
        item = item.detach().cpu().numpy()
    if isinstance(item, np.ndarray):
        pixels: Raw = _stacked(item[None])[0]
        return pixels
    if isinstance(item, (str, os.PathLike)):
        return Path(item)
    if isinstance(item, (bytes, Image.Image)):
        return item
    problem = f"input {position} is a {type(item).__name__}, but the model reads images"
    raise InputError(f"{problem}; give {_IMAGES}")


def _pixels(pixels: npt.NDArray[Any], channels: int) -> npt.NDArray[np.uint8]:
    """Return one image or several as n x C x H x W; `channels` are those of the model.

    An array with three axes is one image if its first or last axis can be the channels; else it is
    n grey images, which a model of colours refuses.
    """
    if pixels.ndim != 3:
        return _stacked(pixels)
    # The rows of one colour image would otherwise be read as grey images.
    channels_last = pixels.shape[-1] in (1, 3)
    channels_first = channels == 3 and pixels.shape[0] in (1, 3)
    if channels_last or channels_first:
        return _stacked(pixels[None])
    if channels == 3:
        advice = "give H x W x 3 or 3 x H x W for one image, n x H x W x 1 for several grey images"
        raise InputError(f"an array of shape {pixels.shape} is no colour image; {advice}")
    return _stacked(pixels)


def _stacked(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return several images as n x C x H x W; without an axis for channels they are grey. Refused
    are pixels that are not uint8, and shapes of which the axis of channels is not clear.
    """
    if pixels.dtype != np.uint8:
        advice = "give pixels from 0 to 255 as np.uint8, without any normalisation"
        raise InputError(f"the images are of type {pixels.dtype}, not uint8; {advice}")
    if pixels.ndim == 3:
        return pixels[:, None]
    channels_first = pixels.ndim == 4 and pixels.shape[1] in (1, 3)
    channels_last = pixels.ndim == 4 and pixels.shape[3] in (1, 3)
    if channels_first == channels_last:
        problem = f"it is not clear which axis of the shape {pixels.shape} has the 1 or 3 channels"
        advice = "give n x C x H x W, n x H x W x C, or n x H x W for grey images"
        raise InputError(f"{problem}; {advice}")
    if channels_first:
        return pixels
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
