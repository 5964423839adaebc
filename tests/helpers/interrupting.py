"""An interrupt sent to the first process of several, as `kill -INT` does; Ctrl-C on a terminal goes
to all of them.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


def interrupted(
    command: Sequence[str], begun: Callable[[], bool], cwd: Path | None = None
) -> tuple[int, str]:
    """Exit code and errors of a command that is interrupted once its work has begun, and has 30 s
    from there to end.
    """
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=cwd
    ) as process:
        try:
            until = time.monotonic() + 60
            while not begun() and time.monotonic() < until and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(
                timeout=30
            )  # the others write there too: it ends with the last of them
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, err
