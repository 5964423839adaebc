"""`attittud init` and `attittud schema`: a commented configuration for your own data, and a schema
of all settings.
"""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import Annotated, get_args

import typer

from attittud_lab.commands import Auxiliary, InputColumn, LabelColumn, read_text
from attittud_lab.errors import InputError, command, unknown
from attittud_lab.files import write_atomically
from attittud_lab.output.interrupts import starting

OTHER_FILE = "choose another file with --output"


def init(
    kind: Annotated[str, typer.Argument(metavar="image|text|table", help="What the examples are.")],
    primary: Annotated[
        str, typer.Option(metavar="DATA", help="The labelled data of the task that matters.")
    ],
    auxiliary: Auxiliary = None,
    input_column: InputColumn = None,
    label_column: LabelColumn = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")
    ] = Path("attittud.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Look at your data and write a configuration, with a reason for each chosen number.

    DATA is a folder with one subfolder of images per class, a parquet, csv or jsonl file (or a
    folder of such files), hf:owner/name for a data set of the Hugging Face hub, or digits for a
    small built-in set. With `table`, every column becomes a feature, except labels and columns such
    as an id; --input chooses a single column instead. Where no pretrained encoder is installed, a
    question offers to fetch one from the hub.
    """
    with starting():
        from attittud_lab.commands.proposal import WARNING, propose
        from attittud_lab.config.schema import Kind
        from attittud_lab.data.source import open_source

    if kind not in get_args(Kind):
        raise unknown("kind of data", kind, get_args(Kind))
    for name in (primary, *(auxiliary or ())):
        if not name.startswith("hf:"):  # opening these would download them
            open_source(name)
    if output.exists() and not force:
        raise InputError(
            f"{output} exists; choose another file with --output, or overwrite it with --force"
        )
    text = propose(kind, primary, auxiliary or [], input_column, label_column)
    read_text(text, [], str(output))  # it must be readable, whatever the paths are called
    write_atomically(output, text.encode(), OTHER_FILE)
    _offer_encoder(kind)
    # The comments at the head of the file say what the data are; warnings among them stand out.
    for line in takewhile(lambda line: line.startswith("#"), text.splitlines()):
        if line.startswith(WARNING):
            typer.echo(f"attittud: {line.removeprefix('# ')}", err=True)
        else:
            typer.echo(line)
    typer.echo(f"# written to {output}; next: {command('train', output)}")


def _offer_encoder(kind: str) -> None:
    """Ask whether to fetch a pretrained encoder for this kind of data, and fetch it after a yes.

    Nothing is asked if one is installed, if the hub has none, or if nobody can answer.
    """
    from attittud_lab.features import INSTALL, absent_encoder
    from attittud_lab.features.hub import fetch

    absent = absent_encoder(kind)
    if absent is None or absent.on_hub is None or not sys.stdin.isatty():
        return
    question = (
        f"No pretrained encoder is installed. Fetch {absent.on_hub} from the Hugging Face hub"
    )
    if not typer.confirm(f"{question} ({absent.megabytes} MB)?", default=True, err=True):
        return
    try:
        fetch(absent.on_hub)
    except InputError as error:  # the configuration is written all the same
        typer.echo(f"attittud: {error}; instead: {INSTALL}", err=True)


def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: print to the screen."
        ),
    ] = None,
) -> None:
    """Write a JSON Schema of configurations: every setting, what it means and its default.

    Editors use it to complete and check settings. Write it with `-o attittud.schema.json` next to
    your configuration. For VS Code with the YAML extension, begin the configuration with the line
    `# yaml-language-server: $schema=attittud.schema.json`.
    """
    from attittud_lab.config.schema import json_schema

    text = json.dumps(json_schema(), indent=1) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text.encode(), OTHER_FILE)
