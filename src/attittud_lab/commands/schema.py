"""`attittud schema`: what a configuration may say, for editors that complete and check YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write; without it, to the screen.")
    ] = None,
) -> None:
    """Write a JSON Schema of configurations: every setting, what it means and its default.

    Editors complete and check with it: write it with `-o attittud.schema.json` beside a configuration that begins, for VS
    Code with the YAML extension, with the line `# yaml-language-server: $schema=attittud.schema.json`.
    """
    from attittud_lab.config.schema import json_schema
    from attittud_lab.files import write_atomically

    text = json.dumps(json_schema(), indent=1) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text.encode(), "choose another file by --output")
