"""Files that would run code if they were unpickled, and files that are damaged in other ways."""

import io
import os
import pickle
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch


class Runs:
    """When it is unpickled it makes the file `mark`, by calling a function of the given kind."""

    def __init__(self, mark: Path, kind: str = "system") -> None:
        self.mark, self.kind = mark, kind

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        mark = str(self.mark)
        return {
            "system": (os.system, (f"touch {mark}",)),
            "exec": (exec, (f"open({mark!r}, 'w')",)),
            "open": (io.open, (mark, "w")),
            "mkdir": (os.mkdir, (mark,)),
            "Popen": (subprocess.Popen, (["touch", mark],)),
        }[self.kind]


KINDS = ("system", "exec", "open", "mkdir", "Popen")


def payloads(mark: Path) -> Iterator[bytes]:
    """Contents of a file: pickles alone, hidden in other data, and in the format of torch.save."""
    for kind in KINDS:
        run = Runs(mark, kind)
        yield from (pickle.dumps(run, protocol) for protocol in (0, 2, 4))
        yield pickle.dumps({"version": 1, "guide": None, "drawn": {"updown": run}})
        for old in (True, False):
            stream = io.BytesIO()
            torch.save({"guide": run, "drawn": {}}, stream, _use_new_zipfile_serialization=not old)
            yield stream.getvalue()
    # Names with a path, which pickles may use since protocol 4.
    name = b"\x80\x04\x8c\x13torch.serialization\x8c\x09os.system\x93\x8c"
    command = f"touch {mark}".encode()
    yield name + bytes([len(command)]) + command + b"\x85R."


def damaged(content: bytes, *, seed: int = 0, count: int = 20) -> Iterator[bytes]:
    """Nothing, something else altogether, cut off, and with bytes that were changed, lost, exchanged or put in."""
    draw = random.Random(seed)
    yield from (b"", b"\x00" * len(content), b"{}", b"[]", b"null", b'"text"', b"[" * 100_000, b"\xff\xfe" + content)
    for _ in range(count):
        yield content[: draw.randrange(len(content))]
        for change in ("flip", "lose", "exchange", "put in"):
            found = bytearray(content)
            for _ in range(draw.choice([1, 2, 5])):
                at, other = draw.randrange(len(found)), draw.randrange(len(found))
                if change == "flip":
                    found[at] = draw.randrange(256)
                elif change == "lose":
                    del found[at : at + draw.randrange(1, 40)]
                elif change == "exchange":
                    found[at : at + 8], found[other : other + 8] = found[other : other + 8], found[at : at + 8]
                else:
                    found[at:at] = content[other : other + draw.randrange(1, 60)]
            yield bytes(found)


WRONG: list[Any] = [None, -1, 0.5, "text", [], {}, [[1]], {"a": 1}, True, 10**30, "9" * 5000, float("nan")]
"""Values that JSON can hold and that few fields of a state may have."""
