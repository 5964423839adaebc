"""Files are whole or absent, whatever happens; one process at a time in a folder."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attittud_lab import files
from attittud_lab.errors import InputError

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("failure", "refusal", "words"),
    [(FULL, InputError, r"a\.json.*disk is full"), (KeyboardInterrupt(), KeyboardInterrupt, None)],
    ids=["full disk", "Ctrl-C"],
)
def test_a_failure_in_mid_write_leaves_nothing_half_written(
    tmp_path, monkeypatch, failure, refusal, words
):
    def fails(_handle: int) -> None:
        raise failure

    (tmp_path / "a.json").write_text("old")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(refusal, match=words):
        files.write_json(tmp_path / "a.json", {"new": 1})
    assert (tmp_path / "a.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_checking_whether_a_file_can_be_written_does_not_change_it(tmp_path):
    (tmp_path / "a").write_text("old")
    files.check_writable(tmp_path / "a")
    files.check_writable(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"
    for name in ("a/b", "nowhere/b", "x" * 300, "a\0b"):
        for attempt in (files.check_writable, lambda path: files.write_json(path, {})):
            with pytest.raises(InputError, match=r"output=FOLDER"):
                attempt(tmp_path / name)
    for name in ("a/b", "x" * 300, "a\0b"):
        with pytest.raises(InputError, match=r"output=FOLDER"):
            files.make_folder(tmp_path / name)


def test_a_file_name_that_is_not_utf_8_is_written_and_read_again(tmp_path):
    names = {os.fsdecode(b"a\xff.png"): "ü"}
    files.write_json(tmp_path / "a.json", names)
    assert files.read_json(tmp_path / "a.json") == names
    assert "ü" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_a_run_folder_whose_name_is_not_utf_8_is_refused(tmp_path):
    """safetensors could not read the files in it again."""
    folder = tmp_path / os.fsdecode(b"job\xff")
    with pytest.raises(InputError, match=r"job.*output=FOLDER"):
        files.make_folder(folder)
    assert not folder.exists()


def test_a_file_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    def broken(path: Path, **_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    files.remove(tmp_path / "a.json")
    monkeypatch.setattr(Path, "unlink", broken)
    with pytest.raises(InputError, match=r"a\.json"):
        files.remove(tmp_path / "a.json")


OTHER_PROCESS = """
import sys, pathlib
from attittud_lab.files import only_one_process
with only_one_process(pathlib.Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


def test_second_process_in_a_folder_is_refused(tmp_path):
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout and other.stdout.readline()
        with pytest.raises(InputError, match="another process"), files.only_one_process(tmp_path):
            pass
        other.stdin.close()
    with files.only_one_process(tmp_path):
        pass


def test_scratch_folders_are_removed_even_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = tmp_path / f"{files._SCRATCH}killed"
    for folder in (killed, tmp_path / f"{files._SCRATCH}young", tmp_path / "attittud-mine"):
        folder.mkdir()
        (folder / ".lock").touch()
    for folder in (killed, tmp_path / "attittud-mine"):
        os.utime(folder / ".lock", (0, 0))
    with files.scratch_folder() as one:
        os.utime(one / ".lock", (0, 0))
        with files.scratch_folder() as two:
            assert one != two and one.is_dir() and two.is_dir()  # the first one is in use
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["attittud-mine", f"{files._SCRATCH}young"]
