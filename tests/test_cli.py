"""The command line, as somebody meets it who types."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

import attittud
from attittud_lab import cli, demo
from attittud_lab.config.load import load
from attittud_lab.errors import InputError

COMMANDS = ["", "demo", "init", "diagnose", "train", "compare", "report", "schema"]
QUICK = ["demo", "--seeds", "2", "--steps", "2"]


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


def test_demo(tmp_path, capsys):
    path = tmp_path / "result.json"
    code, out, err = run(*QUICK, "--out", str(path), capsys=capsys)
    assert code == 0
    assert err == ""  # quiet where nobody watches
    saved = json.loads(path.read_text())
    for row, (what, _) in demo.ROWS.items():
        assert row in out and what in out
    assert "50 % shifted" in out and "take more (--seeds)" in out
    assert saved["seeds"] == [0, 1] and all(len(row["values"]) == 2 for row in saved["tables"][0]["rows"])
    assert out.strip().splitlines()[-1] == "Report: runs/demo/report.html"
    page = (tmp_path / "runs/demo/report.html").read_text()
    assert all(row in page for row in demo.ROWS) and all(quality in page for quality in demo.QUALITIES)
    assert json.loads((tmp_path / "runs/demo/comparison.json").read_text()) == saved
    assert load(tmp_path / "runs/demo/config.yaml") == load(demo.CONFIG)


def test_help_teaches(capsys):
    code, out, _ = run("demo", "--help", capsys=capsys)
    assert code == 0
    for word in ("--seeds", "--steps", "--workers", "--out", "FILE.json", "shifted to the next class"):
        assert word in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_what_to_give_and_not_its_type(command, capsys):
    """Newer typer has `--quiet <bool>`, which takes nothing, and `--auxiliary <list[str]>`, which takes no list."""
    code, out, _ = run(*command.split(), "--help", capsys=capsys)
    assert code == 0 and "--help" in out and "<" not in out, out


def test_version(capsys):
    assert run("--version", capsys=capsys) == (0, f"{attittud.__version__}\n", "")


def test_without_a_command_it_lists_them(capsys):
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert "demo" in out


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["demo", "--seeds", "0"], "--seeds"),
        (["demo", "--seeds", "many"], "--seeds"),
        (["demo", "--steps", "1"], "--steps"),
        (["demo", "--workers", "-1"], "--workers"),
        (["demo", "--colour"], "--colour"),
        (["demo", "surplus"], "surplus"),
        (["demos"], "demos"),
        ([*QUICK, "--out", "no/such/folder/result.json"], "no/such/folder"),
        ([*QUICK, "--out", "."], "'.'"),
    ],
)
def test_bad_input_is_one_paragraph_and_code_2(arguments, culprit, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert out == ""
    assert err.startswith("attittud: ") and err.count("\n") == 1
    assert culprit in err and "--help" in err


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_trained(capsys):
    code, out, err = run(*QUICK, "--folder", "/dev/null/demo", capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "/dev/null/demo: " in err and "choose another folder by --folder" in err


def test_a_missing_library_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    code, _, err = run("demo", capsys=capsys)
    assert code == 2
    assert "'typer'" in err and "attittud[cli]" in err


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_libraries_are_imported(monkeypatch, capsys):
    monkeypatch.setattr(cli, "build", interrupted)
    assert run("demo", capsys=capsys) == (130, "", "attittud: interrupted; no file is left half-written\n")


@pytest.mark.parametrize("what", [typer.Abort, KeyboardInterrupt], ids=["older typer", "this typer"])
def test_an_interrupt_of_which_a_command_does_not_know(what, monkeypatch, capsys):
    """An older typer raises an Abort of its own, a newer one returns 130."""

    def stop(*_: object, **__: object) -> None:
        raise what

    if what is typer.Abort:
        monkeypatch.setattr(cli, "build", lambda: stop)
    else:
        monkeypatch.setattr("attittud_lab.config.schema.json_schema", stop)
    code, out, err = run("schema", capsys=capsys)
    assert (code, out, err.strip()) == (130, "", "attittud: interrupted; no file is left half-written")


def test_an_interrupted_demo_says_what_is_kept(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_all", interrupted)
    code, out, err = run(*QUICK, capsys=capsys)
    assert (code, out) == (130, "") and err.count("\n") == 1
    assert err.startswith("attittud: interrupted; the demo has no result before its end")
    assert list(Path("runs/demo").iterdir()) == []


SCRIPT = "from attittud_lab.cli import main\n"  # what pip writes


@pytest.mark.parametrize("command", [["--version"], *([*name.split(), "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_needs_no_torch(command, tmp_path):
    """It takes seconds to import, and somebody who asks for help has nothing to compute."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + "main()\n", *command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")], ids=str
)
@pytest.mark.parametrize(
    "command",
    [["demo"], ["train", "a.yaml"], ["compare", "a.yaml"], ["diagnose", "a.yaml"]],
    ids=lambda words: words[0],
)
def test_a_signal_while_torch_is_imported(command, number, code, word, tmp_path):
    """That takes seconds, in which nothing of a command has run yet."""
    (tmp_path / "torch.py").write_text("import time\nopen('reached', 'w').close()\ntime.sleep(60)\n")
    Path("attittud").write_text(SCRIPT + "main()\n")
    with subprocess.Popen(
        [sys.executable, "attittud", *command],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    ) as process:
        while not Path("reached").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, f"attittud: {word} while starting; nothing has been done\n")


def test_sigterm_where_a_command_has_no_sentence(monkeypatch, capsys):
    monkeypatch.setattr("attittud_lab.config.schema.json_schema", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run("schema", capsys=capsys) == (143, "", "attittud: terminated; no file is left half-written\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


LONG, NUL = "x" * 300, "a\0b"


@pytest.mark.parametrize(
    "command",
    [
        ["train", LONG],
        ["compare", LONG],
        ["diagnose", LONG],
        ["report", LONG],
        ["init", "image", "--primary", LONG],
        ["init", "image", "--primary", "~no_such_user/x"],
        ["init", "image", "--primary", "digits", "--auxiliary", LONG],
        ["init", "image", "--primary", "digits", "-o", LONG],
        ["compare", "--primary", LONG, "--auxiliary", "digits"],
        ["schema", "-o", LONG],
        *([*words, NUL] for words in (["train"], ["report"], ["schema", "-o"], ["init", "image", "--primary"])),
        ["train", "a.yaml", "seed=" + "1" * 50_000],
        ["train", "--" + "x" * 50_000],
        ["x" * 50_000],
        ["init", "x" * 50_000, "--primary", "digits"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_paths_that_no_file_can_have_and_values_without_end(command, capsys):
    code, _, err = run(*command, capsys=capsys)
    assert code == 2 and err.startswith("attittud: ") and err.count("\n") == 1 and len(err) < 1000
    assert list(Path().iterdir()) == []


def test_a_missing_module_of_ours_is_a_bug_and_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "attittud_lab.commands.demo", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])


def test_what_a_recipe_says_of_the_input_is_passed_on(monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise InputError("the digits are\nmissing; find them")

    monkeypatch.setattr(demo, "run_all", refuse)
    assert run(*QUICK, capsys=capsys) == (2, "", "attittud: the digits are missing; find them\n")


def test_a_file_that_may_not_be_read_is_named(monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "cat/1.png")

    monkeypatch.setattr(demo, "run_all", refuse)
    code, _, err = run(*QUICK, capsys=capsys)
    assert code == 2 and err.startswith("attittud: cat/1.png: may not be read (Permission denied); ")


def test_an_error_of_ours_is_not_hidden_either(monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(demo, "run_all", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(QUICK)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")], ids=str)
def test_workers_have_no_word_of_their_own_at_a_signal(number, word, tmp_path):
    """Ctrl-C reaches every process of a terminal's group, also those that are at their first imports."""
    with subprocess.Popen(
        [sys.executable, "-m", "attittud", "demo", "--steps", "50", "--folder", tmp_path / "page"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not (tmp_path / "page").is_dir() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(1)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == f"attittud: {word}; the demo has no result before its end, the same command starts over\n"


def test_progress_bar_on_a_terminal_and_the_same_figures_from_two_workers(tmp_path):
    """Two worker processes, as by default, started by `python -m attittud` from a terminal."""
    path = tmp_path / "result.json"
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "attittud", "demo", "--seeds", "2", "--steps", "2", "--out", path],
        stdout=subprocess.PIPE,
        stderr=slave,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        cwd=tmp_path,
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            block = os.read(master, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not block:
            break
        seen += block
    os.close(master)
    assert process.stdout is not None
    with process.stdout as stdout:
        table = stdout.read().decode()
    assert process.wait(60) == 0, seen.decode()
    assert "primary_only" in table
    assert "runs" in seen.decode() and "62" in seen.decode()
    found, again = (table["rows"] for table in json.loads(path.read_text())["tables"][1:])
    for (row, quality), rows in {
        ("auto", list(demo.QUALITIES)[1]): found,
        ("flip", list(demo.QUALITIES)[2]): again,
    }.items():
        (values,) = (line["values"] for line in rows if line["label"] == row)
        alone = [demo.measure((row, quality, seed), 2, tmp_path / "alone")[0].test["accuracy"] for seed in (0, 1)]
        assert [value["test"] for value in values.values()] == alone
