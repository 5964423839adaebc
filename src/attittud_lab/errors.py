"""What a person did wrong, in words that say what to do: the command line prints it and exits with 2."""


class InputError(Exception):
    """The message is one paragraph: the culprit, the reason and the cure."""


def one_line(error: BaseException, most: int | None = None) -> str:
    """What another library complains of, cut to so many characters, to be part of a paragraph of ours."""
    return " ".join(str(error).split())[:most]


def needs(extra: str | None, package: str, what: str) -> InputError:
    """The error for an optional package that is not installed; `extra` is the one of ours that brings it."""
    cure = f"'attittud[{extra}]'" if extra else package
    return InputError(f"{what} needs the package {package!r}, which is not installed; run: pip install {cure}")
