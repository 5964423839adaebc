"""The command line as a person uses it: how commands are found, and how they end."""

import errno
import io
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.helpers.commands import run

COMMANDS = ["", "demo", "init", "train", "compare", "report", "schema"]
QUICK = ["demo", "--seeds", "2", "--steps", "2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["demo", "--seeds", "0"], "--seeds"),
        (["demo", "--seed", "3"], "--seeds"),
        (["train", "job.yaml", "--steps", "3"], "--steps"),
        ([*QUICK, "--out", "no/such/folder/result.json"], "no/such/folder"),
    ],
)
def test_bad_input_is_one_paragraph_and_code_2(arguments, culprit, capsys):
    code, out, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert out == ""
    assert err.startswith("attittud: ") and err.count("\n") == 1
    assert culprit in err and "--help" in err


def test_a_missing_library_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    code, _, err = run("demo", capsys=capsys)
    assert code == 2
    assert "'typer'" in err and "attittud[cli]" in err


# One process for all commands. The name of a command goes ahead of its output.
HELP = """
import sys
from attittud_lab.cli import main

for command in sys.argv[1:]:
    print(f"[{command}]", flush=True)
    try:
        main(command.split())
    except SystemExit as stopped:
        if stopped.code:
            raise
"""


def test_help_needs_no_torch(tmp_path):
    """It takes seconds to import, and somebody who asks for help has nothing to compute."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')\n")
    commands = ["--version", *(f"{name} --help".strip() for name in COMMANDS)]
    done = subprocess.run(
        [sys.executable, "-c", HELP, *commands],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-200:]
    # The line of every command is followed by what the command says.
    said = re.split("|".join(re.escape(f"[{command}]\n") for command in commands), done.stdout)
    assert len(said) == 1 + len(commands) and all(text.strip() for text in said[1:])


def test_sigterm_ends_a_command_with_143(monkeypatch, capsys):
    monkeypatch.setattr(
        "attittud_lab.config.schema.json_schema", lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    expected = (143, "", "attittud: terminated; no file is left half-written\n")
    assert run("schema", capsys=capsys) == expected
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Full(io.StringIO):
    """A log on a full disk."""

    def write(self, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_exit_code_does_not_need_room_for_the_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Full())
    code, _, _ = run("train", "missing.yaml", capsys=capsys)
    assert code == 2


def test_a_disk_that_is_full_for_other_libraries_is_a_sentence(monkeypatch, capsys):
    """A scratch folder, for example; files of our own are refused where they are written."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere/scratch")

    monkeypatch.setattr("attittud_lab.commands.train.read", full)
    code, _, err = run("train", "missing.yaml", capsys=capsys)
    assert code == 2 and "somewhere/scratch" in err and "full" in err and err.count("\n") == 1
