"""Inputs in Python are read as what they are, or refused; never as something else."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from attittud_lab.config.schema import TableConfig
from attittud_lab.data.features import Features
from attittud_lab.errors import InputError
from attittud_lab.predict.given import images, table_rows, texts

COLOUR = np.arange(16 * 20 * 3, dtype=np.uint8).reshape(16, 20, 3)


def test_one_colour_image_is_one_image():
    wanted = COLOUR.transpose(2, 0, 1)
    for form in (COLOUR, COLOUR[None], [COLOUR], torch.from_numpy(COLOUR)):
        (found,) = images(form, None, 1)
        np.testing.assert_array_equal(found, wanted)
    (found,) = images(COLOUR[..., :1], None, 1)
    np.testing.assert_array_equal(found, wanted[:1])


@pytest.mark.parametrize("wrong", [3, [{"label": "a"}]])
def test_inputs_of_another_kind_are_refused(wrong):
    for read in (lambda: images(wrong, None, 3), lambda: texts(wrong, None)):
        with pytest.raises(InputError, match=r"the model reads (images|texts)|needs one column"):
            read()


def test_half_a_character_is_refused_with_its_input():
    """A tokenizer would refuse the whole batch, in words about its own types."""
    for half in ("\ud800", "\udcff"):
        for inputs in (["fine", f"a {half} b"], [{"text": "fine"}, {"text": half}]):
            with pytest.raises(InputError, match=f"input 1 .*U\\+{ord(half):X}"):
                texts(inputs, None)
    assert texts(["\U0001f600"], None) == ["\U0001f600"]
    table = pa.table({"x": [1.0, 2.0, 3.0], "c": ["a", "b", "a"]})
    features = Features.fit(table, TableConfig(), "file")
    for row in ({"x": 1.0, "c": "\ud83d"}, {"x": "\ud83d", "c": "a"}):
        with pytest.raises(InputError, match=r"input 1, column '.', has half .*U\+D83D"):
            table_rows([{"x": 1.0, "c": "a"}, row], features)
    unread = {"x": 1.0, "c": "a", "more": "\ud83d"}
    assert table_rows([unread], features) == [unread]


def test_data_frames_and_mappings_give_the_features_of_a_table():
    pandas = pytest.importorskip("pandas")
    dose = pa.array([0.1, 0.2, 0.3], pa.float32())
    table = pa.table({"x": [1.0, 2.0, 3.0], "dose": dose, "c": ["a", "b", None]})
    features = Features.fit(table, TableConfig(categorical=["dose"]), "file")
    wanted, names = features.encode(table, "file"), ["a", "b", "c"]
    frame = table.to_pandas()
    mixed = frame.astype({"dose": object, "c": "category"})
    mixed = mixed.assign(dose=[np.float32(0.1), "0.2", 0.3], more=[1, "a", None])
    for form in (frame, mixed, table, table.to_batches()[0], table.to_pylist()):
        rows = table_rows(form, features)
        np.testing.assert_array_equal(features.encode_rows(rows, names), wanted)
    (row,) = table_rows(table.to_pylist()[0], features)
    np.testing.assert_array_equal(features.encode_rows([row], names[:1]), wanted[:1])
    with pytest.raises(InputError, match="'x' more than once"):
        table_rows(pandas.concat([frame, frame[["x"]]], axis=1), features)
    for wrong in (frame["x"], None, 3, "text", [3]):
        with pytest.raises(InputError, match="columns x, dose, c"):
            table_rows(wrong, features)
