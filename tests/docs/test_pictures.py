"""The pictures come from the committed script."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.pages import DOCS


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_decomposition_is_what_the_script_draws(pictures: ModuleType) -> None:
    drawn = (DOCS / "decomposition.svg").read_text(encoding="utf-8")
    assert pictures.decomposition() == drawn, "run: python docs/pictures.py"


def test_a_screenshot_shows_the_first_screen(pictures: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("no Chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)")
    from PIL import Image

    (tmp_path / "report.html").write_text("<body style='background: rgb(10, 20, 30)'>")
    pictures.screenshot(tmp_path / "report.html", tmp_path / "report.png")
    with Image.open(tmp_path / "report.png") as picture:
        assert picture.size == (2 * pictures.WIDTH, 2 * pictures.HEIGHT)
        assert picture.convert("RGB").getpixel((5, 5)) == (10, 20, 30)
