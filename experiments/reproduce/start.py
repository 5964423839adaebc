"""Weights that all runs of an experiment start from: trained once for every seed, when the first run needs them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from attittud_lab.compare.progress import Runs
from attittud_lab.compare.run import BusyError
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.training.train import load_data, run
from experiments.reproduce.fingerprint import fingerprint
from experiments.reproduce.results import Results


@dataclass
class Start:
    """The run that is started from. Its folders are named by its fingerprint, so other settings are another start."""

    config: Config
    folder: Path
    progress: Runs
    _data: dict[int, Prepared] = field(default_factory=dict, repr=False)

    @property
    def weights(self) -> Path:
        """For `model.weights`, which fills in the seed."""
        return self.folder / fingerprint(self.config) / "seed-{seed}" / "weights.safetensors"

    def train(self, archive: Results, seed: int) -> None:
        """Unless it has been, with this seed. `BusyError` where another process is at it."""
        path = Path(str(self.weights).replace("{seed}", str(seed))).parent
        if _made(path):
            return
        config, split = replace(self.config, seed=seed), split_seed(self.config.data, seed)
        if archive.claims is not None and not archive.claims.take(fingerprint(config)):
            raise BusyError
        if _made(path):  # by another process, a moment ago
            archive.leave(config)
            return
        self.progress.begin(f"start, seed {seed}")
        if split not in self._data:
            self._data = {split: load_data(config)}  # one at a time: seeds mostly share it
        began = time.perf_counter()
        try:
            result = run(config, run_dir=path, data=self._data[split], progress=self.progress, fresh=True)
            archive.keep(path, config, result, time.perf_counter() - began)
        finally:
            archive.leave(config)
        self.progress.end()


def _made(path: Path) -> bool:
    return (path / "result.json").exists() and (path / "weights.safetensors").exists()
