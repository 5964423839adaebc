"""The code of the README and of your-loop.md runs, and links lead somewhere."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attittud import Eta, Guide, LabelChannel
from tests.helpers.pages import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}

LOOP = (ROOT / "docs" / "your-loop.md").read_text(encoding="utf-8")


def test_the_readme_is_short():
    """As `wc -w` counts: code, output, tables and their bars count too."""
    assert len(README.split()) <= 1200, "move it to a page of docs"


def test_the_readme_shows_what_the_commands_printed():
    """Lines may be left out, and an ellipsis ends a line that goes on."""
    printed = iter((ROOT / "docs" / "example.txt").read_text(encoding="utf-8").splitlines())
    (shown,) = blocks(README, "text")
    for line in shown.splitlines():
        start = line.removesuffix("…").rstrip()
        assert any(start == one or ("…" in line and one.startswith(start)) for one in printed), line


@pytest.mark.parametrize("ratio", ["1.06", "1.18", "1.12", "1.28"])
def test_the_cost_page_has_the_ratios_of_the_readme(ratio):
    assert ratio in README and ratio in (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")


def test_the_program_trains(capsys):
    program, *_ = blocks(LOOP, "python")
    names: dict[str, object] = {}
    exec(program, names)
    assert "captured_primary" in capsys.readouterr().out
    assert all(p.grad is not None for p in names["model"].parameters())


@pytest.mark.parametrize("page", [README, LOOP], ids=["README", "your-loop"])
def test_both_sides_of_the_diff_train(page):
    """Two lines are new, one is gone; each side runs with the program of your-loop.md."""
    (program, *_), (diff, *_) = blocks(LOOP, "python"), blocks(page, "diff")
    lines = diff.splitlines()
    assert [line[0] for line in lines].count("+") == 2
    assert [line[0] for line in lines].count("-") == 1
    for dropped in "+-":
        names: dict[str, object] = {}
        exec(program, names)
        start = [p.detach().clone() for p in names["model"].parameters()]
        exec("\n".join(line[2:] for line in lines if line[0] != dropped), names)
        for before, after in zip(start, names["model"].parameters(), strict=True):
            assert not torch.equal(before, after)


TRANSLATED = (ROOT / "docs" / "translated-labels.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "number"), [(README, 1), (TRANSLATED, 0)], ids=["README", "translated-labels"]
)
def test_the_diff_with_a_label_channel_gives_a_loss_that_trains(page, number):
    program, *_ = blocks(LOOP, "python")
    new = [line[2:] for line in blocks(page, "diff")[number].splitlines() if line[0] != "-"]
    names: dict[str, Any] = {"LabelChannel": LabelChannel, "shares": torch.full((3,), 1 / 3)}
    names["x"] = names["x_primary"] = torch.randn(40, 8)
    names["y"] = names["y_primary"] = names["x"].argmax(1) % 3
    exec(program, names)
    names["source"] = nn.Linear(8, 3)
    exec("\n".join(new), names)
    assert names["loss"].requires_grad and names["channel"].matrix.shape == (3, 3)


def test_accumulation_as_it_is_shown_is_the_step_of_the_whole_batch():
    (program, *_), (_, diff) = blocks(LOOP, "python"), blocks(LOOP, "diff")
    new = "\n".join(line[2:] for line in diff.splitlines() if line[0] != "-")
    names: dict[str, Any] = {}
    exec(program, names)
    model = names["model"]
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-30)  # the weights stay
    batches = zip(names["primary_loader"], names["auxiliary_loader"], strict=True)
    names["micro_batches"] = [*batches][:4]
    names["n"] = 4
    names["guide"] = Guide(model, eta=Eta(1, 1, 0), rank=5)
    exec(new, names)
    gradients = [p.grad.clone() for p in model.parameters()]
    primary, auxiliary = zip(*names["micro_batches"], strict=True)
    xp, yp = map(torch.cat, zip(*primary, strict=True))
    xa, ya = map(torch.cat, zip(*auxiliary, strict=True))
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(xp), yp, reduction="none")
    guide = Guide(model, eta=Eta(1, 1, 0), rank=5)
    guide.backward(losses, nn.functional.cross_entropy(model(xa), ya))
    for gradient, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad)


def test_names_that_pages_import_exist():
    """In diffs and in blocks that are not run, too."""
    missing = []
    for page in PAGES.values():
        imports = re.findall(
            r"^[+ ]?from (attittud[\w.]*) import ([\w, ]+)$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        for module, names in imports:
            for name in names.split(", "):
                is_there = hasattr(importlib.import_module(module), name)
                if not is_there and importlib.util.find_spec(f"{module}.{name}") is None:
                    missing.append(f"{page.name}: {module}.{name}")
    assert missing == []


def anchors(page: Path) -> list[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_links_lead_somewhere():
    dead = []
    for name, page in PAGES.items():
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
            file = page.parent / target if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{name}: {target}#{anchor}")
    assert dead == []
