"""Counts what a step asks of a device and of Python."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import attittud

OURS = str(Path(attittud.__file__).parent)


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not call.is_view:
            self.found[str(call)] += 1
        return call(*args, **(kwargs or {}))


@contextmanager
def operations() -> Iterator[Counter[str]]:
    """Inside, operations of torch are counted by name, without views, which launch nothing; one on
    a list counts once.
    """
    counting = _Counting()
    with counting:
        yield counting.found


def own_calls(action: Callable[[], object]) -> int:
    """How many functions of the library an action calls."""
    calls = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls
