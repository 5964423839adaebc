"""``Eta`` and the presets."""

import dataclasses

import pytest

from attittud import Eta, preset, presets
from tests.helpers.oracle import PRESETS


def test_order_is_as_in_the_paper():
    assert Eta(1, 2, 3) == Eta(neutral=1, helpful=2, harmful=3)


def test_an_eta_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Eta(1, 1, 1).neutral = 0


@pytest.mark.parametrize(
    ("field", "value"), [("neutral", float("nan")), ("helpful", float("inf")), ("harmful", "1")]
)
def test_bad_values_name_the_field(field, value):
    with pytest.raises((ValueError, TypeError), match=field):
        Eta(**{"neutral": 1, "helpful": 1, "harmful": 1, field: value})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_its_weights(name):
    eta, weight = PRESETS[name]
    options = preset(name)
    assert options["eta"] == Eta(*eta)
    assert options.get("primary_weight", 1) == weight
    assert options.get("basis") == ("mean" if name == "pcgrad" else None)


def test_presets_are_listed():
    assert set(presets()) == set(PRESETS)


def test_a_preset_can_be_changed_without_changing_the_next():
    preset("flip")["eta"] = None
    assert preset("flip")["eta"] == Eta(1, 1, -1)


def test_an_unknown_preset_is_answered_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"flipp.*drop_harmful"):
        preset("flipp")
