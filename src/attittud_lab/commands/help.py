"""Pages of `--help` without types where there is nothing to give, or the name says it: newer typer has `--quiet <bool>`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command, its `--help` among the flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """The same of `attittud` itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if param.param_type_name == "argument" or param.is_flag:
            param.display_type_rich = lambda ctx: None  # older typer does not ask
    return params
