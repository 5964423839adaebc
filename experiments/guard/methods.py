"""The methods that are compared, by name: what a step adds to the gradient of the new data, and how that gradient is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from attittud import preset

PROTECTED = 8
"""Protected sequences in a step."""
ORTHOGONAL = {**preset("orthogonal"), "basis": "mean", "refresh_every": 1, "primary_weight": 0.0}


@dataclass(frozen=True)
class Method:
    """One way to learn and to protect."""

    guide: dict[str, Any] = field(default_factory=dict)
    """Arguments of a `Guide`; empty where no gradient is changed."""
    added: Literal["", "nll", "kl", "kl_new"] = ""
    """A loss that is added with weight 1: of protected examples, or the divergence on the new ones."""
    loss: Literal["nll", "kl"] = "nll"
    """The loss whose gradient a guide protects."""
    replay: float = 0.0
    """Share of the new examples that protected ones replace."""
    single: bool = False
    """Whether the guide needs losses of single protected examples."""
    judged: bool = False

    @property
    def protects(self) -> bool:
        """Whether protected examples are used at all."""
        return bool(self.guide or self.replay or self.added in ("nll", "kl"))


METHODS = {
    "plain": Method(),
    "replay_1": Method(replay=0.01),
    "replay_5": Method(replay=0.05),
    "replay_20": Method(replay=0.20),
    "sum": Method(added="nll"),
    "kl": Method(added="kl"),
    "kl_new": Method(added="kl_new"),
    "a_gem": Method(preset("a_gem")),
    "a_gem_kl": Method(preset("a_gem"), loss="kl"),
    "running_mean": Method(preset("gru")),
    "orthograd": Method({**preset("orthograd"), "rank": PROTECTED}, single=True),
    "ogpsa": Method(preset("ogpsa")),
    # Parts of the new gradient have to earn their weight by helping the protected set, so it may learn nothing new.
    "auto": Method({"eta": "auto", "basis": "mean", "refresh_every": 1}, judged=True),
    "random": Method({**preset("a_gem"), "basis": "random", "rank": 1}),
    "orthogonal": Method(ORTHOGONAL),
    "adam_metric": Method(preset("gu")),
}
REPLAYS = ("replay_1", "replay_5", "replay_20", "sum")
PROJECTIONS = ("a_gem", "a_gem_kl", "running_mean", "orthograd", "ogpsa", "auto", "adam_metric")
"""Those that may win; the random direction and (1, 0, 0) are ablations."""
