"""Make auxiliary data serve the one task that matters: ATTITTUD for PyTorch."""

from importlib.metadata import PackageNotFoundError, version

from attittud.autograd.average import averages, interpolate, weights_of
from attittud.autograd.forward import isolated_forward
from attittud.basis import bases, register_basis
from attittud.basis.subspace import Subspace
from attittud.channel import LabelChannel
from attittud.decompose import Decomposition, decompose
from attittud.engine import UnsupportedError, engines, register_engine
from attittud.eta import Eta, preset, presets
from attittud.guide import AccumulationWarning, Guide
from attittud.report import Report

try:
    __version__ = version("attittud")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "AccumulationWarning",
    "Decomposition",
    "Eta",
    "Guide",
    "LabelChannel",
    "Report",
    "Subspace",
    "UnsupportedError",
    "averages",
    "bases",
    "decompose",
    "engines",
    "interpolate",
    "isolated_forward",
    "preset",
    "presets",
    "register_basis",
    "register_engine",
    "weights_of",
]
