"""The notebooks run from their first cell to the last one."""

import json
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["digits", "own_pictures"]


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the notebooks draw with matplotlib").use("agg")
    from matplotlib import pyplot as plt

    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: (shown.append(1), plt.close("all")))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, (
                "clear the outputs before you commit"
            )
            exec(compile(text, str(path), "exec"), names)
        else:
            for link in re.findall(r"\]\((?!https?://)([^)#]*)", text):
                assert (path.parent / link).exists(), link
    assert shown
