"""The pages of `--help`, and `--version`."""

import pytest

import attittud
from tests.helpers.command_line import run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


def test_version_prints_the_version(capsys):
    assert run("--version", capsys=capsys) == (0, f"{attittud.__version__}\n", "")


def test_without_a_command_all_commands_are_listed(capsys):
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert "demo" in out
