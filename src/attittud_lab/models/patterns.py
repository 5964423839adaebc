"""Parameters by patterns of their names, as a configuration gives them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from attittud_lab.errors import InputError


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def matching(model: nn.Module, patterns: Sequence[str], where: str) -> list[nn.Parameter]:
    """The parameters that a pattern fits; each pattern has to fit one."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise InputError(
                f"{where}: no parameter has a name like {pattern!r}; * stands for anything. Names are such as "
                f"{', '.join(list(named)[:3])}"
            )
    return [parameter for name, parameter in named.items() if matches(name, patterns)]


def check_shared(model: nn.Module, exclude: Sequence[str], *, head: bool) -> None:
    """Refuse strategies without anything to work on. `head`: some auxiliary source shares the primary head."""
    shared = ("body.", "heads.primary.") if head else ("body.",)
    if not any(
        parameter.requires_grad and name.startswith(shared) and not matches(name, exclude)
        for name, parameter in model.named_parameters()
    ):
        raise InputError(
            "model.freeze and strategy.exclude leave no parameter that is trained and that the tasks share, so there is nothing "
            "to decompose or to combine; freeze less, or use strategy: multitask or pretrain"
        )
