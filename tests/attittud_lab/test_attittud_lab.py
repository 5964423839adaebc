"""`attittud_lab.load`, and an import that leaves torch alone."""

import subprocess
import sys

import pytest

import attittud_lab
from attittud_lab.errors import InputError
from attittud_lab.predict.model import Model
from tests.helpers.predictions import digits_run


def test_load_returns_a_trained_model(tmp_path):
    model = attittud_lab.load(str(digits_run(tmp_path)), device="cpu")
    assert isinstance(model, Model) and model.classes == ["1", "4", "7"]


def test_importing_the_package_imports_no_torch():
    code = "import sys, attittud_lab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_device_is_explained(tmp_path):
    with pytest.raises(InputError, match="cannot be used here"):
        attittud_lab.load(digits_run(tmp_path), device="cuda:77")
