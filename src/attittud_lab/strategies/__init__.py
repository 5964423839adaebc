"""How the gradients of the primary and the auxiliary tasks become one update: strategies by name."""


def names() -> dict[str, str]:
    """Every strategy with one line about it."""
    from attittud_lab.strategies.registry import names as found

    return found()


def find(name: str) -> None:
    """What is no strategy is refused with the nearest name."""
    from attittud_lab.strategies.registry import check_name

    check_name(name)
