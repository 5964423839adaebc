"""Messages about bad input: the culprit, the reason and the cure."""

import math

from attittud_lab.errors import InputError, loose, needs, percent, unknown


def test_an_unknown_name_is_answered_with_the_nearest_and_all_others():
    error = unknown("strategy", "flipp", ["flip", "multitask"])
    assert isinstance(error, InputError)
    assert "'flipp'. Did you mean 'flip'?" in str(error) and "multitask" in str(error)
    assert "Did you mean" not in str(unknown("strategy", "zzz", ["flip", "multitask"]))


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    assert "pip install 'attittud[hub]'" in str(needs("hub", "datasets", "hf: names"))
    assert str(needs(None, "wandb", "that log")).endswith("pip install wandb")


def test_names_that_people_confuse_have_one_loose_form():
    assert loose(" Caf\u00e9") == loose("cafe\u0301 ") != loose("cafe")
    assert loose("Cat\u200b ") == loose("\ufeffcat") == loose("\uff23\uff21\uff34")


def test_a_loss_that_rounds_to_nothing_has_no_minus():
    assert (percent(-0.0001, "+"), percent(-0.01, "+"), percent(0.5)) == ("+0.0", "-1.0", "50.0")
    assert percent(None) == percent(math.nan) == ""
