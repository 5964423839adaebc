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
import pyarrow as pa
from PIL import Image
from torch import Tensor

from attittud_lab.data.features import Features, array
from attittud_lab.data.rows import INPUTS
from attittud_lab.data.source import Raw
from attittud_lab.errors import InputError, listed
from attittud_lab.predict.rows import Row, rows_of

_IMAGES = "a path, bytes of an image file, a PIL image or an array of pixels"


def table_rows(inputs: Any, features: Features) -> list[Row]:
    """Rows of a table: mappings of columns to cells, a data frame, or an array for a single column
    of lists.
    """
    table = _table(inputs)
    if table is not None:
        return rows_of(table)
    if isinstance(inputs, (np.ndarray, Tensor)) and inputs.ndim == 2 and len(features.columns) == 1:
        return [{features.columns[0].name: row.tolist()} for row in inputs]
    names = [column.name for column in features.columns]
    cure = f"the model reads rows of a table; give mappings with the columns {listed(names, 5)}, or a data frame"
    rows = [_row(item) for item in _several([inputs] if _is_row(inputs, names) else inputs, cure)]
    if not all(isinstance(row, Mapping) for row in rows):
        raise InputError(cure)
    return rows


def texts(inputs: Any, column: str | None) -> list[str]:
    """Texts, or the cells of the input column of mappings and data frames."""
    if isinstance(inputs, Tensor) or (
        isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "OUT"
    ):
        raise InputError(
            "the inputs are an array of numbers, but the model reads texts; give strings"
        )
    cells = _cells(inputs, column, "the model reads texts; give strings")
    for position, item in enumerate(cells):
        if not isinstance(item, str):
            what = f"input {position} is a {type(item).__name__}"
            raise InputError(f"{what}, but the model reads texts; give strings")
    return [str(item) for item in cells]


def images(inputs: Any, column: str | None, channels: int) -> list[Any]:
    """Images in any form, or the cells of the input column of mappings and data frames; arrays
    become C x H x W.
    """
    if isinstance(inputs, Tensor):
        inputs = inputs.detach().cpu().numpy()
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind not in "OUT":
        return list(_pixels(inputs, channels))
    cells = _cells(inputs, column, f"the model reads images; give {_IMAGES}, or a list of them")
    return [_image(position, item) for position, item in enumerate(cells)]


def _cells(inputs: Any, column: str | None, cure: str) -> list[Any]:
    """Return the single inputs; mappings and data frames have them in one column."""
    if isinstance(inputs, (str, os.PathLike, bytes, Image.Image)) or _is_row(
        inputs, [column] if column else INPUTS
    ):
        inputs = [inputs]
    names = getattr(
        inputs, "column_names", getattr(inputs, "columns", None)
    )  # of pyarrow, and of pandas or polars
    if names is not None:
        inputs = inputs[_column(list(names), column, "the data frame")]
    return [_cell(position, item, column) for position, item in enumerate(_several(inputs, cure))]


def _cell(position: int, item: Any, column: str | None) -> Any:
    item = _row(item)
    if isinstance(item, Mapping) and not _is_packed(item):
        item = item[_column(list(item), column, f"input {position}")]
    return item["bytes"] if _is_packed(item) else item


def _column(names: Sequence[Any], chosen: str | None, where: str) -> str:
    column = next((column for column in ([chosen] if chosen else INPUTS) if column in names), None)
    if column is None or names.count(column) > 1:
        called = chosen or f"{', '.join(INPUTS[:-1])} or {INPUTS[-1]}"
        missing = f"{where} needs one column that is called {called}; its columns are {listed(names) or 'none'}"
        raise InputError(f"{missing}; rename the column of the inputs, or give its cells as a list")
    return column


def _is_packed(item: Any) -> bool:
    """Whether this is an image in the layout of the public dataset hub; its path is only a name."""
    return isinstance(item, Mapping) and {*item} == {"bytes", "path"}


def _several(inputs: Any, cure: str) -> list[Any]:
    try:
        if isinstance(inputs, (str, bytes)):
            raise TypeError("a text is one input")
        return list(inputs.to_pylist() if hasattr(inputs, "to_pylist") else inputs)
    except TypeError:
        raise InputError(f"the inputs are a {type(inputs).__name__}; {cure}") from None


def _is_series(inputs: Any) -> bool:
    """Whether this is a series of pandas, such as one row or one column of a data frame."""
    return hasattr(inputs, "iloc") and not hasattr(inputs, "columns")


def _is_row(inputs: Any, names: Sequence[str]) -> bool:
    """Whether this is one row: a mapping, or a series with one of these columns."""
    return isinstance(inputs, Mapping) or (
        _is_series(inputs) and any(name in inputs.index for name in names)
    )


def _row(item: Any) -> Any:
    return dict(item.items()) if _is_series(item) else item


def _table(inputs: Any) -> pa.Table | None:
    """Return a data frame as a table whose columns keep their types; None if it is no data
    frame.
    """
    if isinstance(inputs, pa.RecordBatch):
        return pa.Table.from_batches([inputs])
    if hasattr(inputs, "iloc") and hasattr(inputs, "columns"):  # pandas
        columns = [array(inputs.iloc[:, number]) for number in range(len(inputs.columns))]
        return pa.Table.from_arrays(columns, names=[str(name) for name in inputs.columns])
    if isinstance(inputs, pa.Table):
        return inputs
    return (
        pa.table(inputs)
        if hasattr(inputs, "__arrow_c_stream__") and hasattr(inputs, "columns")
        else None
    )  # polars


def _image(position: int, item: Any) -> Raw | Image.Image:
    if isinstance(item, (np.ndarray, Tensor)):
        pixels: Raw = _stacked(
            (item.detach().cpu().numpy() if isinstance(item, Tensor) else item)[None]
        )[0]
        return pixels
    if isinstance(item, (str, os.PathLike)):
        return Path(item)
    if isinstance(item, (bytes, Image.Image)):
        return item
    raise InputError(
        f"input {position} is a {type(item).__name__}, but the model reads images; give {_IMAGES}"
    )


def _pixels(pixels: npt.NDArray[Any], channels: int) -> npt.NDArray[np.uint8]:
    """Return one image or several as n x C x H x W."""
    if pixels.ndim != 3:
        return _stacked(pixels)
    # The rows of one colour image would otherwise be read as grey images.
    single = pixels.shape[-1] in (1, 3) or (channels == 3 and pixels.shape[0] in (1, 3))
    if channels == 3 and not single:
        problem = f"an array of shape {pixels.shape} is no colour image"
        raise InputError(
            f"{problem}; give H x W x 3 or 3 x H x W for one image, n x H x W x 1 for several grey images"
        )
    return _stacked(pixels[None] if single else pixels)


def _stacked(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return several images as n x C x H x W; without an axis for channels they are grey."""
    if pixels.dtype != np.uint8:
        problem = f"the images are of type {pixels.dtype}, not uint8"
        raise InputError(
            f"{problem}; give pixels from 0 to 255 as np.uint8, without any normalisation"
        )
    if pixels.ndim == 3:
        return pixels[:, None]
    colours = [pixels.ndim == 4 and pixels.shape[axis] in (1, 3) for axis in (1, -1)]
    if sum(colours) != 1:
        problem = f"it is not clear which axis of the shape {pixels.shape} has the channels, of which there are 1 or 3"
        raise InputError(
            f"{problem}; give n x C x H x W, n x H x W x C, or n x H x W for grey images"
        )
    return pixels if colours[0] else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
