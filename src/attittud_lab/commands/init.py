"""`attittud init`: a commented configuration for one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attittud_lab.errors import InputError
from attittud_lab.output.interrupts import starting

InputColumn = Annotated[
    str | None, typer.Option("--input", metavar="COLUMN", help="Column with the image or the text, if it is not found.")
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Column with the class, if it is not found.")
]


def init(
    kind: Annotated[str, typer.Argument(metavar="image|text", help="What the examples are.")],
    primary: Annotated[str, typer.Option(metavar="DATA", help="The labelled data of the task that matters.")],
    auxiliary: Annotated[
        list[str] | None, typer.Option(metavar="DATA", help="Other data; may be given several times.")
    ] = None,
    input_column: InputColumn = None,
    label_column: LabelColumn = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")] = Path(
        "attittud.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Look at your data and write a configuration, with a reason beside each chosen number.

    Data are a folder with one folder of images per class, a parquet, csv or jsonl file or a folder of them,
    hf:owner/name, or the embedded digits.
    """
    with starting():
        from attittud_lab.commands.proposal import WARNING, propose
        from attittud_lab.commands.reading import read_text
        from attittud_lab.files import write_atomically

    if kind not in ("image", "text"):
        raise InputError(
            f"{kind!r}: expected image or text, as in `attittud init image --primary PATH --auxiliary PATH`"
        )
    if output.exists() and not force:
        raise InputError(f"{output} exists; choose another file by --output, or overwrite it with --force")
    text = propose(kind, primary, auxiliary or [], input_column, label_column)
    read_text(text, [], str(output))  # it must be readable, whatever the paths are called
    write_atomically(output, text.encode(), "choose another file by --output")
    typer.echo(text, nl=False)
    for line in text.splitlines():
        if line.startswith(WARNING):
            typer.echo(f"attittud: {line.removeprefix('# ')}", err=True)
    typer.echo(f"# written to {output}; next: attittud train {output}")
