"""Where a run computes: the device, its data there, whether steps can be captured, whether bits repeat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Task
from attittud_lab.errors import InputError, one_line
from attittud_lab.training.capture import logger


def choose_device(name: str) -> torch.device:
    """`auto` is the first CUDA device, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the device `meta` holds nothing
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device: {name!r} cannot be used here ({one_line(error, 120)}); use device=auto or device=cpu"
        ) from None
    return device


def on_device(data: Prepared, device: torch.device) -> Prepared:
    """All tensors on the device when they take less than half of its free memory, else where they are."""
    if device.type != "cuda" or data.bytes > torch.cuda.mem_get_info(device)[0] / 2:
        return data

    def moved(task: Task) -> Task:
        return replace(task, examples=task.examples.to(device))

    return replace(
        data,
        primary=moved(data.primary),
        validation=data.validation.to(device),
        test=data.test.to(device),
        auxiliary={name: moved(task) for name, task in data.auxiliary.items()},
    )


def captures(config: Config, data: Prepared, device: torch.device) -> bool:
    """Whether steps can be CUDA graphs here."""
    if not config.training.cuda_graph:
        return False
    if device.type != "cuda":
        logger.info("training.cuda_graph: has no effect on %s", device)
        return False
    if any(part.inputs.device.type != "cuda" for part in data.all_examples):
        logger.warning("training.cuda_graph: has no effect, as the data do not fit into the memory of the GPU")
        return False
    return True


@contextmanager
def repeatable(wanted: bool, device: torch.device) -> Iterator[None]:
    """Only operations that give the same bits every time, if wanted; settings are put back afterwards."""
    if not wanted or device.type != "cuda":
        yield
        return
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    filling = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # nothing here reads what nobody wrote
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = filling
