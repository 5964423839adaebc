"""A guide's state among the files of a Trainer's checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from attittud import checkpoint
from attittud.guide import Guide

logger = logging.getLogger("attittud")

STATE_FILE = "attittud.pt"


def save_guide(guide: Guide, folder: Path, drawn: Mapping[str, int], *, writes: bool) -> None:
    """Every worker calls this, one of them writes. `drawn`: batches that were drawn of each auxiliary dataset."""
    sharded = guide._workers.splits_columns
    if sharded:
        # Each worker has a shard of the basis: a folder beside, which another number of workers can go on from.
        save({"guide": checkpoint.entries(guide)}, checkpoint_id=(folder / STATE_FILE).with_suffix(""))
    if writes:
        state = {"guide": None if sharded else guide.state_dict(), "drawn": dict(drawn)}
        torch.save(state, folder / STATE_FILE)


def load_guide(guide: Guide, folder: Path) -> dict[str, int]:
    """Returns what was drawn; a checkpoint of a Trainer without a guide has no such file."""
    file = folder / STATE_FILE
    if not file.is_file():
        logger.warning("%s is missing: the basis and the order of the auxiliary data start anew", file)
        return {}
    state = torch.load(file, map_location="cpu", weights_only=True)
    if state["guide"] is None:
        checkpoint.load(guide, file.with_suffix(""))
    else:
        guide.load_state_dict(state["guide"])
    return dict(state["drawn"])
