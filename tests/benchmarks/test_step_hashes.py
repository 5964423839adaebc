"""Hashes of training steps are the same for the same steps, and differ where a step does."""

from benchmarks import step_cases
from benchmarks.step_cases import Case
from benchmarks.step_hashes import Run, compare, machine, train


def test_a_hash_depends_on_the_steps_alone(tmp_path):
    assert train(Run(Case(), tmp_path)) == train(Run(Case(), tmp_path))
    assert train(Run(Case(), tmp_path)) != train(Run(Case(guide={"seed": 6}), tmp_path))
    # A new guide with the state of the old one goes on as if nothing had happened.
    assert train(Run(Case(event="resume"), tmp_path)) == train(Run(Case(), tmp_path))


def test_every_case_has_a_name_of_its_own():
    cases: set[str] = set()
    for listed in (step_cases.one_process, step_cases.compiled, step_cases.two_workers):
        names = {case.name for case in listed()}
        assert not names & cases
        cases |= names
    assert "ddp/loop/canonical/float32/mlp/judged" in cases


def test_a_comparison_names_what_differs_and_what_raises(capsys):
    saved = machine() | {"hashes": {"a": "1", "b": "2", "c": "3", "d": "4"}}
    assert compare({"a": "1", "b": "9", "new": "5"}, saved, {"a", "b", "c", "new"}) == 1
    assert compare({"a": "1", "new": "5"}, saved, {"a", "new"}) == 0
    assert "differ: 1\n    b\n" in capsys.readouterr().out
