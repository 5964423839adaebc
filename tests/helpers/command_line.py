"""Commands run in this process, and one that is interrupted."""

import pytest

from attittud_lab import cli


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
