"""Parameters of networks by patterns of their names: which are frozen, excluded or shared."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from attittud_lab.errors import InputError


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name fits one of the patterns, where * stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def matching(model: nn.Module, patterns: Sequence[str], where: str) -> list[nn.Parameter]:
    """The parameters whose names fit a pattern; each pattern must fit at least one."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in named):
            problem = f"{where}: no parameter name matches {pattern!r}, where * stands for anything"
            raise InputError(f"{problem}. Examples of names: {', '.join(list(named)[:3])}")
    return [parameter for name, parameter in named.items() if matches(name, patterns)]


def check_shared(model: nn.Module, exclude: Sequence[str], *, head: bool) -> None:
    """Refuse a strategy that has nothing to work on. `head`: some auxiliary source shares the
    primary head.
    """
    shared: tuple[str, ...] = ("body.",)
    if head:
        shared = ("body.", "heads.primary.")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name.startswith(shared) and not matches(name, exclude):
            return
    raise InputError(
        "model.freeze and strategy.exclude leave no parameter that is trained and that the "
        "tasks share, so there is nothing to decompose or to combine; freeze less, or use "
        "strategy: multitask or pretrain"
    )
