"""A Trainer logs the losses and the shares of the parts."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers

from attittud import Eta, preset
from attittud.decompose import Weights
from attittud.integrations import Latest, check_settings
from attittud.integrations.transformers import AttittudTrainer
from tests.helpers.trainers import SUM, WARNINGS, arguments, llama, sequences

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def test_shares_and_losses_are_logged(tmp_path: Path) -> None:
    trainer = AttittudTrainer(
        model=llama(),
        args=arguments(tmp_path, logging_steps=2),
        train_dataset=sequences(20, [1], 1),
        auxiliary_datasets={"one": sequences(12, [1], 2), "two": sequences(12, [-1], 3)},
        guide={**SUM, "primary_weight": 0.5, "auxiliary_weight": {"one": 1.0, "two": 0.25}},
    )
    trainer.train()
    first = trainer.state.log_history[0]
    for prefix in ("", "one/", "two/"):
        shares = [
            first[f"attittud/{prefix}share_{part}"] for part in ("neutral", "helpful", "harmful")
        ]
        assert sum(shares) == pytest.approx(1, abs=1e-6) and all(
            0 <= share <= 1 for share in shares
        )
    assert first["loss"] == pytest.approx(
        0.5 * first["loss_primary"] + first["loss_one"] + 0.25 * first["loss_two"], rel=1e-5
    )


def test_a_logged_loss_is_averaged_over_the_steps_that_computed_it() -> None:
    latest = Latest()
    for step in range(4):
        if step in (0, 3):
            latest.add("protected", torch.tensor(6.0))
        for _ in range(2):  # micro-batches
            latest.add("new", torch.tensor(1.0))
        latest.take(Mock(refreshed=False))
    assert {name: float(mean) for name, mean in latest.losses().items()} == {
        "loss_protected": 6,
        "loss_new": 2,
    }
    assert latest.losses() == {}


def report(**weights: tuple[float, float, float] | None) -> Mock:
    """A report with these weights of auxiliary tasks; None for fixed ones."""
    made = {name: given and Weights(*map(torch.tensor, given)) for name, given in weights.items()}
    return Mock(
        tasks={name: Mock(earned=given and Mock(weights=given)) for name, given in made.items()}
    )


def test_the_end_of_training_says_if_auto_dropped_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    latest, nothing = Latest(), (0.0, 0.0, 0.0)
    latest.warn_if_dropped()  # no step was made
    for kept in ({"a": nothing, "b": (0.0, 0.1, 0.0)}, {"a": None}, {"a": nothing, "b": None}, {}):
        latest.take(report(**kept))
        latest.warn_if_dropped()
    assert not caplog.messages
    latest.take(report(a=nothing, b=nothing))
    latest.warn_if_dropped()
    assert caplog.messages[0].startswith("eta='auto' ended with weight 0 for every auxiliary part")


def test_a_misspelt_setting_of_a_guide_is_named() -> None:
    assert check_settings(preset("flip"), "guide") == preset("flip")
    with pytest.raises(TypeError, match="'rnk'"):
        check_settings({"eta": Eta(1, 1, 0), "rnk": 5}, "guide")
    with pytest.raises(TypeError, match="'eta'"):
        check_settings({"rank": 5}, "guide")
    with pytest.raises(TypeError, match="'flip'"):
        check_settings("flip", "guide")
