"""Inputs in Python are read as what they are, or refused in one sentence; never as something
else.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from attittud_lab.config.schema import TableConfig
from attittud_lab.data.features import Features
from attittud_lab.errors import InputError
from attittud_lab.predict.given import images, table_rows, texts
from attittud_lab.predict.rows import encoded

COLOUR = np.arange(16 * 20 * 3, dtype=np.uint8).reshape(16, 20, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_one_colour_image_is_one_image(channels: int) -> None:
    wanted = COLOUR.transpose(2, 0, 1)
    for form in (COLOUR, COLOUR[None], [COLOUR], torch.from_numpy(COLOUR)):
        (found,) = images(form, None, channels)
        np.testing.assert_array_equal(found, wanted)
    (found,) = images(COLOUR[..., :1], None, channels)
    np.testing.assert_array_equal(found, wanted[:1])


def test_an_array_without_channels_holds_grey_images() -> None:
    grey = COLOUR.transpose(2, 0, 1)
    assert [image.shape for image in images(grey, None, 1)] == [(1, 16, 20)] * 3
    assert [image.shape for image in images(list(grey), None, 3)] == [(1, 16, 20)] * 3
    assert [image.shape for image in images(grey[..., None], None, 3)] == [(1, 16, 20)] * 3
    (found,) = images(grey, None, 3)
    np.testing.assert_array_equal(found, grey)
    with pytest.raises(
        InputError,
        match=r"\(5, 16, 20\) is no colour image; give .* n x H x W x 1 for several grey",
    ):
        images(np.zeros((5, 16, 20), dtype=np.uint8), None, 3)


def test_images_of_the_dataset_hub_are_in_their_column() -> None:
    packed = {"bytes": b"content", "path": "name.png"}
    table = pa.table({"label": ["a"], "picture": [packed]})
    for inputs in (table, table.to_batches()[0], table.to_pylist(), table["picture"], [packed]):
        assert images(inputs, "picture", 3) == [b"content"]
    assert images({"img": "a.png", "label": "a"}, None, 3) == [Path("a.png")]


@pytest.mark.parametrize(
    "wrong", [None, 3, [None], {"label": "a"}, [{"label": "a"}], pa.table({"label": ["a"]})]
)
def test_inputs_of_another_kind_are_refused(wrong: Any) -> None:
    for read in (lambda: images(wrong, None, 3), lambda: texts(wrong, None)):
        with pytest.raises(
            InputError, match=r"the model reads (images|texts); give|needs one column"
        ):
            read()


def test_texts_are_read_from_the_column_of_the_run() -> None:
    rows = [{"text": "wrong", "body": "right"}]
    assert (
        texts(rows, "body")
        == texts(rows[0], "body")
        == texts(pa.Table.from_pylist(rows), "body")
        == ["right"]
    )
    with pytest.raises(
        InputError,
        match="input 0 needs one column that is called title; its columns are text, body",
    ):
        texts(rows, "title")


def test_data_frames_keep_their_types() -> None:
    pandas = pytest.importorskip("pandas")
    table = pa.table(
        {
            "x": [1.0, 2.0, 3.0],
            "dose": pa.array([0.1, 0.2, 0.3], pa.float32()),
            "c": ["a", "b", None],
        }
    )
    features = Features.fit(table, TableConfig(categorical=["dose"]), "file")
    wanted, names = features.encode(table, "file"), ["a", "b", "c"]
    frame = table.to_pandas()
    mixed = frame.astype({"dose": object, "c": "category"}).assign(
        dose=[np.float32(0.1), "0.2", 0.3], more=[1, "a", None]
    )
    for form in (frame, mixed, table, table.to_batches()[0], [row for _, row in frame.iterrows()]):
        np.testing.assert_array_equal(
            encoded(features, table_rows(form, features), names, set()), wanted
        )
    (row,) = table_rows(frame.iloc[0], features)
    np.testing.assert_array_equal(encoded(features, [row], names[:1], set()), wanted[:1])
    twice = pandas.concat([frame, frame[["x"]]], axis=1)
    with pytest.raises(InputError, match="needs the columns x once each"):
        encoded(features, table_rows(twice, features), names, set())
    for wrong in (frame["x"], None, 3, "text", [3]):
        with pytest.raises(
            InputError,
            match="the model reads rows of a table; give mappings with the columns x, dose, c",
        ):
            table_rows(wrong, features)
