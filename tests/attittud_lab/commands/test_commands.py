"""The commands that only print: `--version`, no command at all, and `schema`."""

import json

import attittud
from tests.helpers.commands import run


def test_version_prints_the_version(capsys):
    assert run("--version", capsys=capsys) == (0, f"{attittud.__version__}\n", "")


def test_without_a_command_all_commands_are_listed(capsys):
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert "demo" in out


def test_schema_prints_a_json_schema(tmp_path, capsys):
    code, shown, _ = run("schema", capsys=capsys)
    assert code == 0
    assert run("schema", "-o", str(tmp_path / "s.json"), capsys=capsys)[0] == 0
    assert json.loads(shown) == json.loads((tmp_path / "s.json").read_text())
