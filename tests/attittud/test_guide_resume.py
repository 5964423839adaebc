"""Stop in mid-interval, go on in a new process: bit for bit as if never stopped."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.utils import prune

from attittud import Eta, Guide
from tests.helpers.oracle import error
from tests.helpers.zoo import Problem, problem

STEPS_BEFORE, STEPS_AFTER = 7, 20  # refresh_every = 5: two steps into the second interval


SETTINGS = {
    "sketch": {"basis": "sketch", "include_mean": True},
    "svd": {"basis": "svd"},
    "exact": {"basis": "exact"},
    "mean": {"basis": "mean"},
    "random": {"basis": "random"},
    "canonical": {"basis": "canonical"},
    "bf16": {"basis_dtype": torch.bfloat16},
    "basis_losses": {},
}


class Run:
    """A model, an optimizer and a guide in training; batches depend on the step number alone."""

    def __init__(self, setting: str, init: int = 0, **changes) -> None:
        self.problem: Problem = problem(
            "cnn_batch_norm" if setting == "sketch" else "mlp", m=12, n=12
        )
        self.with_basis_losses = setting == "basis_losses"
        if init:  # other initial values than in the saved run
            with torch.no_grad():
                for x in self.problem.model.parameters():
                    x.add_(init)
        options = {
            "eta": Eta(1, 0.5, -1),
            "primary_weight": 0.1,
            "rank": 3,
            "refresh_every": 5,
            "seed": 4,
        }
        self.guide = Guide(self.problem.model, **options | SETTINGS[setting] | changes)
        self.optimizer = torch.optim.Adam(self.problem.model.parameters(), lr=0.01)

    def train(self, first: int, steps: int) -> list[bool]:
        refreshed = []
        for i in range(first, first + steps):
            at = slice(i % 5, i % 5 + 6)
            self.optimizer.zero_grad()
            primary, auxiliary = self.problem.losses(at), self.problem.loss(at)
            more = {"basis_losses": self.problem.losses} if self.with_basis_losses else {}
            refreshed.append(
                self.guide.backward(primary=primary, auxiliary=auxiliary, **more).refreshed
            )
            self.optimizer.step()
        return refreshed

    def save(self, **options) -> dict:
        return {
            "model": self.problem.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "guide": self.guide.state_dict(**options),
        }

    def load(self, state: dict) -> None:
        self.problem.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.guide.load_state_dict(state["guide"])


@pytest.mark.nightly
def test_a_new_process_continues_bitwise(tmp_path):
    saved, want = {}, {}
    for setting in SETTINGS:
        run = Run(setting)
        run.train(0, STEPS_BEFORE)
        torch.save(run.save(), tmp_path / "one.pt")
        saved[setting] = torch.load(tmp_path / "one.pt", weights_only=True)
        run.train(STEPS_BEFORE, STEPS_AFTER)
        want[setting] = run.problem.model.state_dict()
    torch.save(saved, tmp_path / "saved.pt")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run(
        [sys.executable, __file__, str(tmp_path)], check=True, env=environment, timeout=120
    )
    got = torch.load(tmp_path / "resumed.pt", weights_only=True)
    for setting, state in want.items():
        assert all(torch.equal(got[setting][name], value) for name, value in state.items()), setting


def test_without_the_basis_the_next_step_refreshes():
    run = Run("sketch")
    run.train(0, STEPS_BEFORE)
    state = run.save(include_basis=False)
    assert state["guide"].get("basis") is None
    other = Run("sketch", init=1)
    other.load(state)
    assert other.train(STEPS_BEFORE, 3) == [True, False, False]
    fresh, again = other.guide.state_dict()["basis"], run.guide.state_dict()["basis"]
    assert fresh.shape == again.shape
    assert not torch.equal(fresh, again)


def test_a_state_from_before_the_first_step_can_be_loaded():
    run, other = Run("sketch"), Run("sketch", init=1)
    other.load(run.save())
    assert run.train(0, 3) == other.train(0, 3) == [True, False, False]
    assert error(run.problem.grads(), other.problem.grads()) == 0


@pytest.mark.parametrize("changes", [{"rank": 4}, {"basis": "exact"}], ids=str)
def test_settings_that_contradict_the_state_are_named(changes):
    run = Run("sketch")
    run.train(0, 2)
    other = Run("sketch", **changes)
    with pytest.raises(ValueError, match=next(iter(changes))):
        other.guide.load_state_dict(run.guide.state_dict())


if __name__ == "__main__":  # the new process
    folder = sys.argv[1]
    resumed = {}
    for name, state in torch.load(f"{folder}/saved.pt", weights_only=True).items():
        run = Run(name, init=1)
        run.load(state)
        run.train(STEPS_BEFORE, STEPS_AFTER)
        resumed[name] = run.problem.model.state_dict()
    torch.save(resumed, f"{folder}/resumed.pt")


# ------------------------------------------------------------------------- states that were changed


@pytest.mark.parametrize("formats", [(torch.contiguous_format, torch.channels_last)])
def test_a_state_does_not_depend_on_the_memory_format(formats):
    """A state is loaded before or after the model is converted to channels_last, or saved after
    it.
    """
    before, after = formats
    p, q = problem("cnn_group_norm", torch.float64), problem("cnn_group_norm", torch.float64)
    options = {"eta": Eta(1, 0.5, -1), "rank": 3, "refresh_every": 10}
    p.model.to(memory_format=before)
    guide = Guide(p.model, **options)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    state = guide.state_dict()
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    p.model.to(memory_format=after)
    q.model.to(memory_format=after)
    for saved in (state, guide.state_dict()):
        other = Guide(q.model, **options)
        other.load_state_dict(saved)
        q.model.zero_grad()
        assert not other.backward(primary=q.losses(), auxiliary=q.loss()).refreshed
        for name, grad in q.grads().items():
            torch.testing.assert_close(grad, p.grads()[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("change", ["replaced", "renamed"])
def test_a_state_is_of_the_model_as_it_is_now(change, caplog):
    """It is saved after the model has changed, and before the next step."""
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    if change == "replaced":
        p.model.body[0] = torch.nn.Linear(p.model.body[0].in_features, 11)
    else:
        prune.l1_unstructured(p.model.body[0], "weight", amount=0.5)
    other = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3)
    other.load_state_dict(guide.state_dict())
    assert other.refresh_due and "without the basis" in caplog.text
    assert guide.state_dict()["basis"] is None
