"""The README and the docs are right: their code runs, and their numbers come from the committed result."""

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attittud import Eta, Guide, LabelChannel
from attittud_lab.demo import ROWS, conclusions, grid
from tests.helpers.pages import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())
RESULT = json.loads((ROOT / "docs" / "demo.json").read_text(encoding="utf-8"))
PAGES = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
DEMO = ROOT / "docs" / "appendix" / "demo.md"


LOOP = (ROOT / "docs" / "your-loop.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "docs" / "example.txt").read_text(encoding="utf-8")


def test_the_readme_is_short():
    """As `wc -w` counts: code, output, tables and their bars count too."""
    assert len(README.split()) <= 1200, "move it to a page of docs"


def test_limits_are_five_short_lines():
    _, _, after = README.partition("## Limits\n\n* ")
    shown = re.sub(r"\]\([^)]*\)", "]", after.partition("\n\n")[0])  # without the targets of links
    bullets = shown.split("\n* ")
    assert len(bullets) == 5 and max(len(bullet.split()) for bullet in bullets) <= 25


def test_the_program_trains(capsys):
    program, *_ = blocks(LOOP, "python")
    names: dict[str, object] = {}
    exec(program, names)
    assert "captured_primary" in capsys.readouterr().out
    assert all(p.grad is not None for p in names["model"].parameters())


@pytest.mark.parametrize("page", [README, LOOP], ids=["README", "your-loop"])
def test_both_sides_of_the_diff_train(page):
    """Two lines are new, one is gone; each side runs with what the program of your-loop.md defines."""
    (program, *_), (diff, *_) = blocks(LOOP, "python"), blocks(page, "diff")
    lines = diff.splitlines()
    assert [line[0] for line in lines].count("+") == 2
    assert [line[0] for line in lines].count("-") == 1
    for dropped in "+-":
        names: dict[str, object] = {}
        exec(program, names)
        start = [p.detach().clone() for p in names["model"].parameters()]
        exec("\n".join(line[2:] for line in lines if line[0] != dropped), names)
        assert not any(torch.equal(a, b) for a, b in zip(start, names["model"].parameters(), strict=True))
        assert isinstance(names["model"], nn.Module)


TRANSLATED = (ROOT / "docs" / "translated-labels.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "number"), [(README, 1), (TRANSLATED, 0)], ids=["README", "translated-labels"])
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
    model, lr = names["model"], 1e-30  # so that the weights stay as they are
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=lr)
    names["micro_batches"] = list(zip(names["primary_loader"], names["auxiliary_loader"], strict=True))[:4]
    names["n"], names["guide"] = 4, Guide(model, eta=Eta(1, 1, 0), rank=5)
    exec(new, names)
    found = [p.grad.clone() for p in model.parameters()]
    (xp, yp), (xa, ya) = (
        [torch.cat(x) for x in zip(*side, strict=True)] for side in zip(*names["micro_batches"], strict=True)
    )
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(xp), yp, reduction="none")
    Guide(model, eta=Eta(1, 1, 0), rank=5).backward(losses, nn.functional.cross_entropy(model(xa), ya))
    for mine, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad)


def test_table_is_the_committed_result():
    spec = importlib.util.spec_from_file_location("demo_table", ROOT / "docs" / "demo_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = DEMO.read_text(encoding="utf-8")
    assert module.updated(page) == page, "run: python docs/demo_table.py"
    *counted, last = conclusions(RESULT)
    for line in counted:
        name, numbers = line.split(": ")
        rows, gain, lose, same = re.findall(r"\d+", numbers)
        assert f"| {name} | {gain} | {lose} | {same} |" in page and f"| of the {rows} other rows |" in page
    assert last in page


def of_demo(label: str, figure: str) -> list[float]:
    """A figure of a row in the three columns."""
    rows = [row for table in RESULT["tables"] for row in table["rows"] if row["label"] == label]
    if figure == "mean":
        return [100 * row["test"]["mean"] for row in rows]
    return [100 * row["to_primary_only"]["mean"] for row in rows]


def points(label: str) -> list[str]:
    """The difference of a row from `primary_only` in the three columns, as prose gives it."""
    return [f"{abs(value):.1f}" for value in of_demo(label, "difference")]


def test_prose_describes_the_table_correctly():
    """'When does it help?' in the README and 'How to read it' of the demo are written by hand; these are the facts."""
    page = " ".join(DEMO.read_text(encoding="utf-8").split())
    marks = {label: "".join(sign for _, sign, _ in cells) for label, cells in grid(RESULT).items()}
    assert marks["own_head"] == "▲▲=" and "and it gains in the other two columns" in page
    single = [label for label in ROWS if label != "portfolio"]
    assert max(single, key=lambda label: of_demo(label, "mean")[2]) == "own_head"
    assert "of all single runs it has the highest mean with shifted labels" in page
    assert marks["portfolio"] == "▲▲▲" and "`portfolio` gains in all three columns" in page
    keep_neutral = ("multitask", "pcgrad", "drop_harmful", "orthogonal", "flip", "orthogonal_flip")
    below = sorted(-of_demo(label, "difference")[2] for label in keep_neutral)
    means = f"have means {below[0]:.0f} to {below[-1]:.0f} points below `primary_only`. Four of these six"
    assert len(keep_neutral) == 6 and sum(marks[label][2] == "▼" for label in keep_neutral) == 4
    assert f"All presets that add it to the primary gradient {means} presets are significantly below" in page
    named = "All [presets](docs/which-weights.md#presets) that add the neutral part to the primary gradient"
    assert f"{named} {means} presets are significantly below" in WORDS
    assert "▲" not in marks["helpful_only"]
    right = {label: of_demo(label, "mean")[0] for label in single}
    assert max(right.values()) - right["multitask"] < 0.5 and marks["multitask"][0] == "▲"
    assert f"The plain sum of both losses gains {points('multitask')[0]} points, as much as any split" in WORDS


def test_committed_result_says_how_it_was_made():
    assert len(RESULT["seeds"]) >= 5 and [row["label"] for row in RESULT["tables"][0]["rows"]] == list(ROWS)
    assert {"torch", "attittud", "revision", "processor", "cores"} <= RESULT["made_with"].keys()
    words = " ".join(DEMO.read_text(encoding="utf-8").split())
    assert f"he other {RESULT['examples']['auxiliary/others']} training images are auxiliary data" in words
    assert f"{len(RESULT['seeds'])} seeds" in WORDS
    # The processor time: the wall clock says as much of what else ran on that machine.
    assert RESULT["took"]["processor_seconds"] / 2 < 90 + 120  # the row of the portfolio adds at most two minutes


def test_sections_are_in_order():
    wanted = [
        "Install",
        "The change to your loop",
        "Your own data, without code",
        "When does it help?",
        "Cost",
        "Limits",
        "`make demo` and `make test`",
        "Documentation",
        "Citation",
    ]
    assert re.findall(r"^## (.*)$", README, re.MULTILINE) == wanted
    assert len(re.findall(r"^\|", README, re.MULTILINE)) <= 2 + 5  # one table of at most five rows


def test_commands_and_their_output_are_those_of_a_real_run():
    """docs/pictures.py made it. … stands for what is left out of a line, and lines may be left out."""
    (shown,) = blocks(README, "text")
    lines = shown.splitlines()
    assert sum(line.startswith("$ attittud ") for line in lines) == EXAMPLE.count("$ attittud ")
    found = 0
    for line in lines:
        if line.strip() and line.strip() != "…":
            parts = [re.escape(part) for part in line.split("…")]
            match = re.compile("^" + ".*".join(parts) + "$", re.MULTILINE).search(EXAMPLE, found)
            assert match is not None, f"docs/example.txt has no such line from here on: {line}"
            found = match.end()


def test_the_screenshot_is_small():
    assert (ROOT / "docs" / "report.png").stat().st_size < 200_000


@pytest.mark.parametrize("page", PAGES)
def test_no_promise_and_no_dead_link(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for promise in (
        "without hurting",
        "without harm",
        "never hurts",
        "never harms",
        "does no harm",
        "do no harm",
        "is safe to",
    ):
        assert promise not in text.lower()
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text):
        file = PAGES[page].parent / target if target else PAGES[page]
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> list[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES)
def test_names_that_pages_import_exist(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for module, names in re.findall(r"^[+ ]?from (attittud[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(", "):
            found = importlib.import_module(module)
            assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module}.{name}"


def test_auto_is_near_the_better_of_its_two_references_in_every_column_of_the_demo():
    means = (of_demo(label, "mean") for label in ("auto", "primary_only", "multitask"))
    for auto, alone, multitask in zip(*means, strict=True):
        assert auto >= max(alone, multitask) - 2.5
