"""A state says when the next refresh is due, and of which model and settings it is.

`test_checkpoint.py` shows that a run continues with it bit for bit.
"""

import pytest
import torch
from torch.nn.utils import prune

from attittud import Eta, Guide
from tests.helpers.zoo import problem

OPTIONS = {"eta": Eta(1, 0.5, -1), "rank": 3, "refresh_every": 5}


def test_without_the_basis_the_next_step_refreshes():
    p = problem("mlp")
    guide = Guide(p.model, **OPTIONS)
    for _ in range(7):
        guide.backward(p.losses, p.loss())
    state = guide.state_dict(include_basis=False)
    assert state.get("basis") is None
    p = problem("mlp")
    other = Guide(p.model, **OPTIONS)
    other.load_state_dict(state)
    assert [other.backward(p.losses, p.loss()).refreshed for _ in range(3)] == [True, False, False]
    assert not torch.equal(other.state_dict()["basis"], guide.state_dict()["basis"])


def test_a_loaded_guide_has_the_state_that_it_was_given():
    p = problem("mlp")
    guide, other = Guide(p.model, **OPTIONS), Guide(p.model, **OPTIONS)
    for _ in range(7):
        guide.backward(p.losses, p.loss())
    saved = guide.state_dict()
    other.load_state_dict(saved)
    state = other.state_dict()
    assert torch.equal(state.pop("basis"), saved.pop("basis"))
    assert state == saved


def test_a_state_does_not_depend_on_the_memory_format():
    """A state is loaded before or after a conversion to channels_last, or saved after it."""
    p, q = problem("cnn_group_norm", torch.float64), problem("cnn_group_norm", torch.float64)
    guide = Guide(p.model, **OPTIONS)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    state = guide.state_dict()
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    p.model.to(memory_format=torch.channels_last)
    q.model.to(memory_format=torch.channels_last)
    for saved in (state, guide.state_dict()):
        other = Guide(q.model, **OPTIONS)
        other.load_state_dict(saved)
        q.model.zero_grad()
        assert not other.backward(primary=q.losses(), auxiliary=q.loss()).refreshed
        for name, grad in q.grads().items():
            torch.testing.assert_close(grad, p.grads()[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("change", ["replaced", "renamed"])
def test_a_state_is_of_the_model_as_it_is_now(change, caplog):
    """It is saved after the model has changed, and before the next step."""
    p = problem("mlp")
    guide = Guide(p.model, **OPTIONS)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    if change == "replaced":
        p.model.body[0] = torch.nn.Linear(p.model.body[0].in_features, 11)
    else:
        prune.l1_unstructured(p.model.body[0], "weight", amount=0.5)
    other = Guide(p.model, **OPTIONS)
    other.load_state_dict(guide.state_dict())
    assert other.refresh_due and "without the basis" in caplog.text
    assert guide.state_dict()["basis"] is None
