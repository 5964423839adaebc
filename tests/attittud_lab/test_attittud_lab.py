"""`attittud_lab.load`."""

import pytest

import attittud_lab
from attittud_lab.errors import InputError
from attittud_lab.predict.model import Model
from tests.helpers.predictions import digits_run


def test_load_returns_a_trained_model(tmp_path):
    folder = digits_run(tmp_path)
    model = attittud_lab.load(str(folder), device="cpu")
    assert isinstance(model, Model) and model.classes == ["1", "4", "7"]
    with pytest.raises(InputError, match="cuda:77"):
        attittud_lab.load(folder, device="cuda:77")
