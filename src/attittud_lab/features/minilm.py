"""Texts by a frozen sentence encoder, all-MiniLM-L6-v2, whose weights come with a package."""

from __future__ import annotations

from importlib.metadata import version

from attittud_lab.features.base import Plain
from attittud_lab.features.encoder_hf import EncoderFeatures
from attittud_lab.models.huggingface import HFFolder
from attittud_lab.models.minilm import PACKAGE, package_folder


class MiniLMFeatures(EncoderFeatures):
    """The mean of the last hidden states of all-MiniLM-L6-v2, scaled to norm 1."""

    name = "minilm"
    reads = "text"
    arguments = ()

    def __init__(self) -> None:
        self.folder = HFFolder(package_folder("features 'minilm'"))

    def settings(self) -> Plain:
        settings = super().settings()
        del settings["folder"]
        return settings | {"package": PACKAGE, "version": version(PACKAGE)}
