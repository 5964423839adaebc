"""The learner `finetuned`: pretrained networks, whose frozen features simple learners read, are
trained like any network of a portfolio.

Here a job is rewritten for such a network: another model, other steps, images with random changes.
"""

from __future__ import annotations

from dataclasses import replace

from attittud_lab import features
from attittud_lab.config.schema import Augment, Config, ModelConfig, PhaseConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError, joined

NAME = "finetuned"
"""The name of the learner."""
BATCH = 32
"""Primary examples in a step."""
AUXILIARY_BATCH = 64
RATES = {"image": 5e-4, "text": 1e-4}
"""Learning rate by the kind of data."""
LAST = 4
"""The phase on primary data alone has the steps of the first phase, divided by this."""
WARMUP = 10
"""The learning rate rises during the steps of a phase, divided by this."""


def pretrained_networks(config: Config, data: Prepared) -> dict[str, str]:
    """Return the models that can be trained, by the names of the job's features, which come from
    these networks; refuses a job without any.
    """
    choice = features.choose_features(data.kind, config.portfolio.features or ())
    models = {name: features.trained_as(name) for name in choice.names}
    networks = {name: model for name, model in models.items() if model is not None}
    if networks:
        return networks
    without = joined(choice.names)
    problem = f"portfolio.learners: {NAME} trains the pretrained network of features, and {without} has none"
    advice = f"leave {NAME} out"
    possible = [name for name in features.names(data.kind) if features.trained_as(name)]
    if possible:
        advice += f", or add one of {', '.join(possible)} to portfolio.features"
        advice += f"; the first one comes with: {features.INSTALL}"
    raise InputError(f"{problem}; {advice}")


def job_for(config: Config, data: Prepared, model: str) -> Config:
    """Return a job that trains a pretrained network instead of the network of `model:`."""
    settings = config.portfolio.finetuned
    rate = settings.lr
    if rate is None:
        rate = RATES[data.kind]
    network = ModelConfig(name=model)
    augment: Augment = []
    if data.kind == "image":
        network = ModelConfig(name=model, image_size=settings.image_size)
        augment = list(settings.augment)
    training = replace(
        config.training,
        mode="two_phase",
        guided=_phase(settings.steps, rate),
        finetune=_phase(max(1, settings.steps // LAST), rate / LAST),
        reset_head=False,
        augment=augment,
    )
    return replace(config, model=network, training=training)


def _phase(steps: int, rate: float) -> PhaseConfig:
    """Return a phase with so many steps and this largest learning rate."""
    return PhaseConfig(
        steps=steps,
        primary_batch=BATCH,
        batch_size=AUXILIARY_BATCH,
        optimizer="adamw",
        lr=rate,
        weight_decay=0.01,
        schedule="cosine",
        lr_min=0.0,
        warmup=steps // WARMUP,
    )


def learner_name(features_name: str) -> str:
    """The name in tables: the features whose network is trained, and the learner."""
    return f"{features_name}, {NAME}"
