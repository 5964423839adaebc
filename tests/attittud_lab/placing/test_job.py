"""Jobs in this process, and what they carry to other ones."""

import logging
import time
import warnings

import pytest
import torch

from attittud_lab.errors import InputError
from attittud_lab.placing.job import Job, Reports, in_this_process, perform, replay
from tests.helpers.jobs import Seen, broken, double, doubles, refused, talkative


def test_jobs_in_this_process_run_one_after_the_other(tmp_path):
    taken: list[str] = []

    def jobs():
        for job in doubles(tmp_path, 3, torch.arange(4)):
            taken.append(job.name)
            yield job

    seen = Seen()
    with in_this_process() as place:
        for number, (job, (result, _)) in enumerate(place.run(jobs(), seen)):
            # A job is taken when the one before is done.
            assert (job.name, result, len(taken)) == (f"job {number}", 2 * number, number + 1)
    assert [event[1] for event in seen.seen] == ["phase", "advance", "end"] * 3
    assert (tmp_path / "2/inner/out.txt").read_text() == "6"


def test_an_error_of_a_job_is_raised_unchanged(tmp_path):
    with in_this_process() as place, pytest.raises(InputError, match="no good"):
        list(place.run([Job("bad", refused, ("no good",), tmp_path)], Seen()))


def test_reports_wait_for_each_other_and_none_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)  # the machine has just started
    sent: list[list] = []
    outcome = perform(Job("a", double, (1,)), tmp_path, None, Reports(sent.append, every=1000))
    assert [event[0] for event in sent[0]] == ["phase"] and len(sent) == 1
    assert [event[0] for event in outcome.events] == ["advance"]
    seen = Seen("a")
    for events in (*sent, outcome.events):
        replay(seen, events)
    assert [event[1:3] for event in seen.seen] == [("phase", "work"), ("advance", 2)]


def test_logged_lines_and_warnings_are_shown_where_the_command_is(tmp_path, capsys, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = perform(Job("a", talkative), tmp_path, None, Reports(lambda _: None, every=1000))
        assert not caplog.records and capsys.readouterr().err == ""
    assert logging.getLogger("attittud").propagate
    first = ("log", logging.WARNING, "a logged line")  # sent at once
    replay(Seen(), [first, *outcome.events])
    assert "a logged line" in caplog.text and "UserWarning: a warning" in caplog.text


def test_an_unexpected_error_says_where_it_was(tmp_path):
    error = perform(Job("a", broken), tmp_path, None, Reports(lambda _: None, every=0)).error
    assert type(error) is ZeroDivisionError
    assert "in broken" in "".join([str(error), *getattr(error, "__notes__", [])])
