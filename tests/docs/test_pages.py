"""Pages of docs answer one question each, their code runs, and what they name exists."""

import ast
import importlib.util
import itertools
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F
from typer.main import get_command

import attittud
from attittud_lab import cli
from attittud_lab.config.load import load
from tests.helpers.data_sets import encoded
from tests.helpers.pages import DOCS, EVERY, FENCED, QUESTIONS, ROOT, blocks, without_code

MOST_WORDS = 1200
LANGUAGES = {"python", "diff", "yaml", "bash", "text"}  # and directives of the site, in braces
NAMES = {path: str(path.relative_to(DOCS)) for path in EVERY}


def of_every_page(language: str) -> list[Any]:
    """One parameter for each page that has blocks in this language."""
    return [
        pytest.param(path, id=NAMES[path])
        for path in EVERY
        if blocks(path.read_text(encoding="utf-8"), language)
    ]


def test_pages_are_short():
    """As `wc -w` counts, without fenced code: the bars of a table count too."""
    for path in QUESTIONS:
        words = without_code(path.read_text(encoding="utf-8")).split()
        assert len(words) <= MOST_WORDS, f"{path.name}: move tables and records to docs/appendix"


def test_the_index_leads_to_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for name in NAMES.values():
        if name != "index.md":
            assert re.search(rf"^(.* <)?{name.removesuffix('.md')}>?$", index, re.MULTILINE), name


def test_the_page_of_the_demo_has_its_figures_and_words():
    """The table said of a row what it did in an earlier version."""
    specification = importlib.util.spec_from_file_location("demo_table", DOCS / "demo_table.py")
    table = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(table)
    page = table.PAGE.read_text(encoding="utf-8")
    assert page == table.updated(page), "run `python docs/demo_table.py`"


def test_every_block_can_be_tried():
    """Each has a language that a test below knows, or a reason for not being run."""
    for path in EVERY:
        for found in FENCED.finditer(path.read_text(encoding="utf-8")):
            language = found["language"]
            assert language in LANGUAGES or language.startswith("{"), f"{path.name}: {language}"
            if language == "bash" and not found["reason"]:
                lines = found["code"].splitlines()
                assert all(line.startswith("attittud ") for line in lines), f"{path.name}: {lines}"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data that the pages name, a configuration, and a short run."""
    folder = tmp_path_factory.mktemp("workplace")
    count = itertools.count()  # no picture is a copy of another one
    for source in ("pictures", "other_pictures", "new_pictures", "pets", "animals"):
        for label in ("cat", "dog"):
            (folder / source / label).mkdir(parents=True)
            for number in range(12):
                name = f"{source}-{number}.png"
                (folder / source / label / name).write_bytes(encoded(next(count)))
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(encoded(7))
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(
            "size,label\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(40))
        )
    return folder


@pytest.fixture
def there(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    if not Path("attittud.yaml").exists():
        attittud_(["init", "image", "--primary", "pictures/", "--auxiliary", "other_pictures/"])
        shutil.copy("attittud.yaml", "job.yaml")
        short = "training.guided.steps=4 training.finetune.steps=2 training.guided.primary_batch=4"
        command = "train attittud.yaml strategy=auto training.finetune.primary_batch=4 --quiet"
        attittud_([*command.split(), *short.split()])
        shutil.copytree("runs/attittud/auto/seed-0", "RUN")


def attittud_(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 0


def commands(text: str) -> Iterator[list[str]]:
    """Commands of `attittud` in a page, in fences and in indented blocks."""
    for line in re.findall(r"^(?:    )?attittud .*$", text, re.MULTILINE):
        yield shlex.split(line.partition(" < ")[0], comments=True)[1:]


WITH_COMMANDS = [path for path in EVERY if any(commands(path.read_text(encoding="utf-8")))]


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=NAMES.get)
def test_commands_are_understood(path):
    """The command line parses them, and configurations take their settings."""
    group, text = get_command(cli.build()), path.read_text(encoding="utf-8")
    with group.make_context("attittud", ["schema"]) as context:
        for words in commands(text):
            name, command, rest = group.resolve_command(context, words)
            parsed = command.make_context(name, list(rest), parent=context).params
            if parsed.get("config") is not None:
                load(Path(parsed["config"]), parsed["overrides"] or [])


@pytest.mark.usefixtures("there")
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [DOCS / name for name in ("own-data.md", "training.md", "predict.md")], ids=NAMES.get
)
def test_quick_commands_run(path):
    run = 0
    for words in commands(path.read_text(encoding="utf-8")):
        if words[0] in ("init", "schema", "predict") and "-" not in words:
            own = ["RUN" if word.startswith("runs/") else word for word in words]
            attittud_([*own, "--force"] if own[0] == "init" else own)
            run += 1
    assert run


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("path", of_every_page("python"))
def test_python_blocks_run(path, tmp_path):
    """Blocks of a page share their names; a model and batches are there before the first."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    names: dict[str, Any] = {name: getattr(attittud, name) for name in attittud.__all__}
    for name in "paj":
        names |= {f"x{name}": torch.randn(16, 8), f"y{name}": torch.randint(3, (16,))}
    names |= {"torch": torch, "nn": nn, "F": F, "model": model, "folder": tmp_path / "guide"}
    names |= {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    names["guide"] = attittud.Guide(model, eta=attittud.Eta(1, 1, 0), rank=5)
    if together := "DistributedDataParallel" in path.read_text(encoding="utf-8"):
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        names["DistributedDataParallel"] = nn.parallel.DistributedDataParallel
    try:
        for block in blocks(path.read_text(encoding="utf-8"), "python"):
            if together and "checkpoint" in block:
                batch = names["model"](names["xp"])
                losses = F.cross_entropy(batch, names["yp"], reduction="none")
                names["guide"].backward(primary=losses, auxiliary=batch.square().mean())
            exec(compile(block, str(path), "exec"), names)
    finally:
        if together:
            distributed.destroy_process_group()


@pytest.mark.parametrize("path", of_every_page("diff"))
def test_the_new_side_of_a_diff_is_python(path):
    for block in blocks(path.read_text(encoding="utf-8"), "diff"):
        new = [line[1:] for line in block.splitlines() if not line.startswith("-")]
        ast.parse(textwrap.dedent("\n".join(new)))


@pytest.mark.parametrize("path", of_every_page("yaml"))
def test_configurations_on_a_page_are_valid(path, tmp_path):
    for block in blocks(path.read_text(encoding="utf-8"), "yaml"):
        (tmp_path / "job.yaml").write_text(block, encoding="utf-8")
        load(tmp_path / "job.yaml")


def test_the_glossary_has_every_field_of_a_report():
    model = nn.Linear(4, 3)
    guide = attittud.Guide(model, eta="auto", judge_every=1, rank=2)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))

    def judge():
        return F.cross_entropy(model(x), y, reduction="none")

    report = guide.backward(judge(), model(x).square().mean(), judge=judge)
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8")
    assert [name for name in report.to_dict() if f"`{name}`" not in glossary] == []


def test_docs_that_other_files_name_exist():
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in ("src", "examples", "experiments", "benchmarks", "tests"):
        files += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]
    missing = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|svg|json|txt|py)\b", text):
            if not (ROOT / name).exists():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []
