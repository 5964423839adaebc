"""The pages of `--help`, and `--version`."""

import pytest

import attittud
from tests.helpers.command_line import run

COMMANDS = ["", "demo", "init", "train", "compare", "report", "schema"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


def test_the_help_of_the_demo_explains_its_options(capsys):
    code, out, _ = run("demo", "--help", capsys=capsys)
    assert code == 0
    for word in (
        "--seeds",
        "--steps",
        "--workers",
        "--out",
        "FILE.json",
        "shifted to the next class",
    ):
        assert word in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_each_value_and_not_its_type(command, capsys):
    """Newer typer has `--quiet <bool>`, which takes nothing, and `--auxiliary <list[str]>`, which
    takes no list.
    """
    code, out, _ = run(*command.split(), "--help", capsys=capsys)
    assert code == 0 and "--help" in out and "<" not in out, out


def test_version_prints_the_version(capsys):
    assert run("--version", capsys=capsys) == (0, f"{attittud.__version__}\n", "")


def test_without_a_command_all_commands_are_listed(capsys):
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert "demo" in out
