"""The wheel, installed outside the checkout: what a user gets from `pip install attittud`."""

import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_string
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


# Warnings are errors, except for torch's own at its import when there is no numpy.
STRICT = ["-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning"]

STEP = """
import torch
from attittud import Eta, Guide

model = torch.nn.Linear(3, 2)
guide = Guide(model, eta=Eta(neutral=1, helpful=1, harmful=-1), rank=2)
primary, auxiliary = model(torch.randn(4, 3)), model(torch.randn(4, 3))
guide.backward(primary=primary.square().mean(1), auxiliary=auxiliary.mean())
assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
"""


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that is not the checkout, with nothing of it on the path."""
    env = {name: x for name, x in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    options = {"env": env, "capture_output": True, "text": True, "timeout": 300}
    result = subprocess.run(command, cwd=cwd, check=False, **options)
    assert not check or result.returncode == 0, f"{command} failed:\n{result.stdout}{result.stderr}"
    return result


def needs(requirements: Iterable[str], extra: str = "") -> Iterator[Requirement]:
    """The requirements that hold here."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def closure(requirements: Iterable[Requirement]) -> dict[str, Distribution]:
    """The installed distributions that pip would install for `requirements`, by name."""
    installed: dict[str, Distribution] = {}
    seen = set()
    waiting = [*requirements]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                installed[canonicalize_name(name)] = distribution(name)
                waiting += needs(distribution(name).requires or [], extra)
    return installed


def metadata_of(wheel: Path) -> Message:
    """What a package index reads."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode("utf-8"))


def install(wheel: Path, folder: Path, *, extra: str = "") -> Path:
    """A fresh environment as `pip install attittud[extra]` makes it, with the folder of the wheel
    as the package index; returns its `bin` folder.

    The declared dependencies are links to the copies that the tests run with: to install torch
    again would take a minute. pip checks that none is missing.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (site,) = folder.glob("lib/python*/site-packages")
    required = metadata_of(wheel).get_all("Requires-Dist", [])
    for dependency in closure(needs(required, extra)).values():
        for top in {file.parts[0] for file in dependency.files or []} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():  # namespace packages are shared
                link.symlink_to(Path(str(dependency.locate_file(top))))
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    name = f"attittud[{extra}]" if extra else "attittud"
    run(*pip, "--no-index", "--find-links", wheel.parent, name, cwd=folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, so that both are shown to be complete."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def torch_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip install attittud`."""
    return install(wheel, tmp_path_factory.mktemp("core") / "venv")


@pytest.fixture(scope="module")
def with_cli(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip install attittud[cli]`."""
    return install(wheel, tmp_path_factory.mktemp("cli") / "venv", extra="cli")


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"attittud", "attittud_lab"}
    assert "attittud/py.typed" in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_has_the_right_metadata(wheel, torch_only):
    metadata = metadata_of(wheel)
    assert {"ATTITTUD", "ATTITUD"} <= set(metadata["Keywords"].split(","))
    required = metadata.get_all("Requires-Dist", [])
    assert [requirement.name for requirement in needs(required)] == ["torch"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Project-URL") and metadata["License-Expression"] == "MIT"
    headings = re.findall(r"^#.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"^#.*$", str(metadata.get_payload()), re.MULTILINE) == headings
    (path,) = torch_only.parent.rglob("attittud-*.dist-info")
    scripts = Distribution.at(path).entry_points.select(group="console_scripts")
    assert {entry.name for entry in scripts} == {"attittud", "attitud"}
    assert {entry.value for entry in scripts} == {"attittud_lab.cli:main"}


def test_the_version_is_the_same_everywhere(wheel):
    version = metadata_of(wheel)["Version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    sections = re.findall(r"^## \[(.*)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[:2] == [("Unreleased", ""), (version, f" - {citation['date-released']}")]
    major_minor = version.rpartition(".")[0]
    for page in ("README.md", "docs/what-can-go-wrong.md"):
        assert re.findall(r"[Vv]ersion (0\.\d+)", (ROOT / page).read_text()) == [major_minor], page


def test_on_an_index_links_and_pictures_lead_to_the_tag_in_the_repository():
    """Other addresses and anchors stay."""
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))
    text = "![a](docs/a.png) [b](pages/b.md#c) [d](https://e.f) [g](#h) [`i`](CITATION.cff)"
    made = hook["absolute"](text, "https://x.y/o/attittud/", "1.2.3")
    there = "https://x.y/o/attittud"
    assert made == (
        f"![a]({there}/raw/v1.2.3/docs/a.png) [b]({there}/blob/v1.2.3/pages/b.md#c) "
        f"[d](https://e.f) [g](#h) [`i`]({there}/blob/v1.2.3/CITATION.cff)"
    )
    assert hook["without_links"](text) == " b [d](https://e.f) [g](#h) `i`"


def test_on_an_index_nothing_asks_for_a_checkout(wheel):
    description = str(metadata_of(wheel).get_payload())
    assert "pip install 'attittud[cli,pretrained]'" in description
    for command in re.findall(r"pip install \S+", description):
        assert not command.strip("'").startswith("pip install ."), command
    assert not re.search(r"\]\((?!https?://|#)", description)


def test_core_needs_torch_alone(wheel, torch_only, tmp_path):
    # The kernels need Triton, which torch's CUDA builds bring along; the core does without it
    # elsewhere.
    others = ("attittud/__main__", "attittud/integrations/", "attittud/kernels/cuda")
    imports = []
    for name in zipfile.ZipFile(wheel).namelist():
        if name.startswith("attittud/") and name.endswith(".py") and not name.startswith(others):
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            imports.append(f"import {module}")
    assert "import attittud.guide" in imports
    # Were the extras there, the environment would prove nothing.
    absent = "from importlib.util import find_spec\nassert not find_spec('numpy') and not find_spec('typer')"
    run(torch_only / "python", *STRICT, "-c", "\n".join([absent, *imports]), cwd=tmp_path)


def test_a_step_runs_from_the_wheel(torch_only, tmp_path):
    where = "import attittud\nprint(attittud.__file__)"
    done = run(torch_only / "python", *STRICT, "-c", STEP + where, cwd=tmp_path)
    package = Path(done.stdout.strip()).parent
    assert package.is_relative_to(torch_only.parent)
    assert (package / "py.typed").is_file()


def test_importing_the_core_leaves_installed_extras_alone(with_cli, tmp_path):
    code = "import sys, torch\nbefore = set(sys.modules)\nimport attittud\nprint(*set(sys.modules) - before)"
    loaded = run(with_cli / "python", "-c", code, cwd=tmp_path).stdout.split()
    packages = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    assert packages <= {"attittud", "torch"}


def test_the_commands_train_and_predict(with_cli, tmp_path):
    """From the wheel alone: files beside the code, such as the template of the report, are there."""
    for name, rows in {"mine": range(40), "others": range(40, 120), "new": range(120, 126)}.items():
        lines = [f"{n * 37 % 127 / 10},{n % 2 * 3 + n % 5},{'ab'[n % 2]}" for n in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y,label", *lines]) + "\n")
    files = ["--primary", "mine.csv", "--auxiliary", "others.csv"]
    run(with_cli / "attittud", "init", "table", *files, cwd=tmp_path)
    run(with_cli / "attitud", "train", "attittud.yaml", "--quiet", cwd=tmp_path)
    folder = Path("runs/attittud/portfolio/seed-0")
    assert "<html" in (tmp_path / folder / "report.html").read_text()
    done = run(with_cli / "python", "-m", "attittud", "predict", folder, "new.csv", cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 7


def test_command_without_its_extra_says_what_to_install(torch_only, tmp_path):
    result = run(torch_only / "attittud", "--help", cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert "attittud[cli]" in result.stderr
    assert "Traceback" not in result.stderr
