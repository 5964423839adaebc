"""Unknown models are answered with the names that are known."""

import pytest

from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model
from tests.helpers.networks import images, model_config


def test_unknown_models_are_refused_with_the_known_names() -> None:
    for name, message in {
        "smal-cnn": r"Did you mean 'small-cnn'\?",
        "wideresnet-20-4": "the depth must be 6n",
        "wideresnet-10-0": "the width at least 1",
        "text-cnn": "reads texts, but the data are images",
        "hf:nowhere": r"attittud\[transformers\]|cannot be loaded",
        "timm:nonsense_9": r"attittud\[timm\]|cannot be built",
    }.items():
        with pytest.raises(InputError, match=message):
            build_model(model_config(name).model, images(), 0)
