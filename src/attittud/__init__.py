"""Make auxiliary data serve the one task that matters: ATTITTUD for PyTorch."""

from importlib.metadata import PackageNotFoundError, version

from attittud.decompose import Decomposition, decompose
from attittud.eta import Eta, preset, presets
from attittud.guide import Guide
from attittud.report import Report

try:
    __version__ = version("attittud")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Decomposition", "Eta", "Guide", "Report", "decompose", "preset", "presets"]
