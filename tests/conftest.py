"""What all tests share: one thread per worker, no time limit per example, a fixed seed."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that: tests
    # send it to some.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two workers with a thread per core each are slower than two with one. In the environment and
# before torch is imported, so that processes started by a test inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines announce AMX and then kill the process that uses it (bf16 convolutions and
# LSTMs do).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# No deadline: the first example pays for torch's warm-up. In CI always the same examples: a failure
# is the change's.
settings.register_profile(
    "attittud", deadline=None, derandomize="CI" in os.environ, print_blob=True
)
settings.load_profile("attittud")

collect_ignore = ["helpers"]  # nothing there is a test


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL sends no telemetry, and no trainer draws progress bars."""
    import datasets
    import transformers

    monkeypatch.setenv("CI", "1")
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests all are `nightly` out of `make test`: some import for seconds."""
    nightly = collection_path.name.endswith("_nightly.py")
    return True if nightly and config.option.markexpr == "not nightly" else None


GPU_WARNINGS = [
    "ignore:.*TensorFloat32.*",  # torch offers it once per process
    "ignore:.*[Ss]ynchronization debug mode.*",  # torch calls its check for waits a prototype
    "ignore:.*CUDA Graph is empty.*",  # inductor tries one
    "ignore:.*lr_scheduler.*",
    "ignore:.*AccumulateGrad.*",
    "ignore::DeprecationWarning",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no GPU."""
    no_gpu = not torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skipif(no_gpu, reason="needs a CUDA device"))
            item.add_marker(pytest.mark.filterwarnings(*GPU_WARNINGS))


OURS = {"attittud", "attittud_lab", "benchmarks", "experiments", "tests"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Make a test file that cannot be imported an error, unless a package is not installed.

    Because of `--doctest-ignore-import-errors` pytest would skip the file with all of its tests.
    """
    report = yield
    # pytest keeps the call here for a moment. It skips while it handles the error of the file.
    failure = report.call.excinfo.value.__context__ if report.skipped else None
    if isinstance(failure, pytest.Collector.CollectError):
        error = failure.__cause__
        missing = getattr(error, "__cause__", None) or error  # adapters name the extra themselves
        is_package = isinstance(missing, ModuleNotFoundError) and missing.name is not None
        if not is_package or missing.name.partition(".")[0] in OURS:
            report.outcome = "failed"
            report.longrepr = str(failure)
    return report
