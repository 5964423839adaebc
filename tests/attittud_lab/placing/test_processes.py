"""Jobs in several processes: the same outcome, one screen, and processes that die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attittud_lab.errors import InputError
from attittud_lab.placing.job import Job
from attittud_lab.placing.processes import in_processes
from tests.helpers.jobs import Seen, broken, dies, double, doubles, patient, refused, wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")


def test_jobs_share_data_and_processes(tmp_path):
    seen = Seen()
    with in_processes(2) as place:
        data = torch.arange(1000)
        results = [result for _, result in place.run(doubles(tmp_path, 5, data), seen)]
        (stored,) = place._forms.values()
        assert stored.exists()
        del data  # nobody needs the file any more
        assert not stored.exists()
        more = [result for _, result in place.run(doubles(tmp_path / "more", 1), seen)]
    assert sorted(result for result, _ in results) == [0, 2, 4, 6, 8]
    pids = {pid for _, pid in [*results, *more]}
    assert len(pids) <= 2 and os.getpid() not in pids
    assert not [pid for pid in pids if Path("/proc", str(pid)).exists()]
    assert {path.read_text() for path in tmp_path.rglob("out.txt")} == {str(999 * 500), "0"}
    for number in range(5):  # each run has its own progress
        events = [event[1] for event in seen.seen if event[0] == f"job {number}"]
        assert events[:3] == ["phase", "advance", "end"]


def test_an_error_ends_all_processes_and_is_raised_unchanged(tmp_path):
    there = tmp_path / "there"
    slow = Job("slow", patient, (there, tmp_path / "never"), tmp_path)

    def jobs():
        yield slow
        wait_for(there)
        yield Job("bad", refused, ("no good; mend it",), tmp_path / "x")

    began = time.monotonic()
    with pytest.raises(InputError) as raised, in_processes(2) as place:
        list(place.run(jobs(), Seen()))
    assert str(raised.value) == f"{tmp_path}/x/a.txt: no good; mend it"
    assert time.monotonic() - began < 50 and not Path("/proc", there.read_text()).exists()
    with in_processes(1) as place, pytest.raises(ZeroDivisionError, match="a mistake"):
        list(place.run([Job("bad", broken)], Seen()))


def test_a_killed_process_is_replaced_once(tmp_path):
    seen = Seen()
    with in_processes(2) as place:
        unlucky = Job("unlucky", dies, (1,), tmp_path / "unlucky")
        jobs = [unlucky, Job("other", double, (1,), tmp_path / "other")]
        found = {job.name: result for job, result in place.run(jobs, seen)}
        assert found["unlucky"] == "alive after 1" and found["other"][0] == 2 and place.at_once == 1
        (said,) = [event[2] for event in seen.seen if event[1] == "say"]
        assert said.startswith("unlucky: ") and "signal 9" in said
        with pytest.raises(InputError, match=r"lost: .*signal 9.*/lost"):
            list(place.run([Job("lost", dies, (9,), tmp_path / "lost")], seen))


WORK = """
import sys
from pathlib import Path
from attittud_lab.placing.job import Job
from attittud_lab.placing.processes import in_processes
from tests.helpers.jobs import Seen, patient
if __name__ == "__main__":
    here = Path(sys.argv[1])
    with in_processes(2) as place:
        list(place.run([Job(str(i), patient, (here / f"at{i}", here / "never"), here) for i in range(2)], Seen()))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs to see other processes")
def test_worker_processes_end_with_the_main_process(tmp_path):
    """Nothing tells them: SIGKILL leaves no time for it."""
    (tmp_path / "work.py").write_text(WORK)
    with subprocess.Popen(
        [sys.executable, tmp_path / "work.py", tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        for i in range(2):
            wait_for(tmp_path / f"at{i}")
        time.sleep(0.1)
        workers = [Path("/proc", (tmp_path / f"at{i}").read_text()) for i in range(2)]
        assert all(worker.exists() for worker in workers)
        process.kill()
    until = time.monotonic() + 20
    while (
        left := [worker.name for worker in workers if worker.exists()]
    ) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert not left
