"""`attittud predict`: labels and probabilities for new inputs, from the folder of a finished
run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attittud_lab.commands import LabelColumn
from attittud_lab.errors import InputError, counted, listed
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import Lines, display

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attittud_lab.predict.inputs import Item
    from attittud_lab.predict.model import Batch, Model

MOST_NAMED = 20
"""The most broken pictures that are named."""
_RUN = typer.Argument(metavar="RUN", help="The folder that `attittud train` printed last.")
_INPUTS = typer.Argument(
    metavar="INPUTS", help="Folders, image files, tables, or - for standard input."
)
_OUTPUT = typer.Option(
    "--output",
    "-o",
    metavar="FILE",
    help="A .csv, .jsonl or .parquet file. Default: csv to standard output.",
)
_EXPORT = typer.Option(metavar="FILE.pt2", help="Write the model as one `torch.export` program.")
_SKIP = typer.Option(
    "--skip-broken",
    help=f"Leave out pictures that cannot be read; the first {MOST_NAMED} are named.",
)
_RAW = typer.Option(
    "--raw",
    help="Write texts to csv as they are. By default an apostrophe precedes those that a spreadsheet would take for formulas.",
)
_THRESHOLD = typer.Option(
    metavar="P",
    min=0,
    max=1,
    help="With several labels at once: predict labels with a probability above P. Default: 0.5.",
)


def predict(
    run: Annotated[Path, _RUN],
    inputs: Annotated[list[str] | None, _INPUTS] = None,
    output: Annotated[Path | None, _OUTPUT] = None,
    export: Annotated[Path | None, _EXPORT] = None,
    threshold: Annotated[float | None, _THRESHOLD] = None,
    input_column: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="COLUMN",
            help="Column with the image or the text, if it is not found automatically.",
        ),
    ] = None,
    label_column: LabelColumn = None,
    skip_broken: Annotated[bool, _SKIP] = False,
    raw: Annotated[bool, _RAW] = False,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.")
    ] = "auto",
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show neither progress nor notes.")
    ] = False,
) -> None:
    """Predict the label and the probability of every class with a trained model.

    INPUTS are folders of images (subfolders are included), image files, or csv, tsv, jsonl or
    parquet files with the columns that the run was trained on. The input `-` is stdin: JSON lines,
    one text per line, or one image path per line. The output has one row for each input, in the
    same order. No label column is needed; if there is one, the accuracy is shown. A note says how
    many of these inputs were also in the training or validation data of the run, if its folder
    records which examples it used.

    Probabilities are calibrated with a temperature. It was fitted on the validation examples of the
    run, or on the out-of-fold predictions of a portfolio. No code in RUN is executed. In Python,
    `attittud_lab.load(RUN)` does the same.
    """
    if not inputs and export is None:
        raise InputError(
            "there is nothing to predict; name a folder or files after RUN, or - for standard input"
        )
    if raw and output is not None and output.suffix.lower() != ".csv":
        raise InputError(f"--raw is for csv, but {output} is no csv file; leave it out")
    with starting():
        from attittud_lab.predict.model import load

    with interruptible(lambda: "no file is left half-written"):
        model = load(run, device)
        if threshold is not None and not model.several:
            raise InputError(
                "--threshold is for several labels at once, but this model predicts one label per input; leave it out"
            )
        if skip_broken and model.about.kind != "image":
            raise InputError(
                f"--skip-broken is for pictures, but this model reads {model.about.kind}s; leave it out"
            )
        if input_column is not None and model.about.kind == "table":
            raise InputError(
                "--input names the column of an image or a text, but this model reads all columns of a table; leave it out"
            )
        if export is not None:
            if export.suffix != ".pt2" or not export.parent.is_dir():
                raise InputError(
                    f"{export}: give a file that ends in .pt2, in a folder that exists"
                )
            model.export(export)
            typer.echo(str(export))
        if model.note and not quiet:
            typer.echo(f"attittud: {model.note}", err=True)
        if inputs:
            columns = (input_column, label_column)
            flags = {"skip_broken": skip_broken, "quiet": quiet, "raw": raw}
            # With --quiet nothing shows the count, for which every picture is read once more.
            used = None if quiet else _used(run)
            for line in _predict(model, inputs, output, threshold, columns, used, **flags):
                if not quiet:
                    typer.echo(line, err=True)


def _used(run: Path) -> npt.NDArray[np.uint64] | None:
    """Read which examples the run has used; if that is damaged, a note says so, because no
    prediction depends on it.
    """
    from attittud_lab.predict.model import used_examples

    try:
        return used_examples(run)
    except InputError as error:
        typer.echo(
            f"attittud: cannot tell how many inputs were also in the training or validation data: {error}",
            err=True,
        )
        return None


def _predict(
    model: Model,
    names: list[str],
    output: Path | None,
    threshold: float | None,
    columns: tuple[str | None, str | None],
    used: npt.NDArray[np.uint64] | None,
    *,
    skip_broken: bool,
    quiet: bool,
    raw: bool,
) -> list[str]:
    """Predict batch by batch, and return the lines to show at the end."""
    from attittud_lab.predict.inputs import Inputs
    from attittud_lab.predict.model import AT_ONCE, THRESHOLD
    from attittud_lab.predict.outputs import check_output, open_output

    check_output(output, names, model.classes, several=model.several)
    primary = model.config.data.primary
    chosen = (columns[0] or primary.input, columns[1] or primary.label)
    options = [
        option
        for option, column in zip(("--input", "--label"), columns, strict=True)
        if column is not None
    ]
    total, items = Inputs(model.about.kind, model.classes, model.several, *chosen, options).read(
        names
    )
    on_screen = output is None and sys.stdout.isatty()  # then the screen shows the predictions
    shown = display(Lines(unit="inputs"), quiet=quiet or on_screen)
    count = labelled = right = trained_on = 0
    opened = open_output(output, model.classes, several=model.several, raw=raw)
    with _broken_ones() as broken, shown, opened as write:
        shown.phase("predict", total, 0)
        while chunk := list(islice(items, AT_ONCE)):
            batch, ready = _readable(model, chunk, broken)
            count += len(chunk)
            if broken and not skip_broken:
                continue  # nothing is predicted any more, but all broken pictures are found
            if batch:
                scores = model.scores(ready)
                labels = model.labels(scores, THRESHOLD if threshold is None else threshold)
                write(batch, labels, model.probabilities(scores))
                if used is not None:
                    trained_on += model.count_used([item.raw for item in batch], ready, used)
                for item, label in zip(batch, labels, strict=True):
                    if item.truth is not None:
                        labelled += len(model.classes) if model.several else 1
                        predicted = {label} if isinstance(label, str) else {*label}
                        wrong = len(item.truth ^ predicted)
                        right += len(model.classes) - wrong if model.several else not wrong
            shown.advance(len(chunk), {})
        _check_some(names, count, len(broken), skip_broken=skip_broken)
    done = count - len(broken)
    if model.several:
        on = counted(labelled, "known label")
    else:
        on = f"{counted(labelled, 'input')} whose label is known"
    accuracy = f", accuracy {right / labelled:.4f} on {on}" if labelled else ""
    left = f", {counted(len(broken), 'input')} left out" if broken else ""
    lines = [
        f"{counted(done, 'prediction')}{'' if output is None else f' in {output}'}{left}{accuracy}"
    ]
    if trained_on:
        lines.append(
            f"{trained_on} of {counted(done, 'input')} {_also(trained_on, model.about.kind)}"
        )
    return lines


def _also(count: int, kind: str) -> str:
    """Say what this many inputs have in common with the training data."""
    if (
        kind == "table"
    ):  # independent rows of a table with few distinct values can be equal, so they are no copies
        return f"{'has' if count == 1 else 'have'} the same features as training or validation rows of this run"
    verb, them = ("is", "it") if count == 1 else ("are", "them")
    return (
        f"{verb} also in the training or validation data of this run; results on {them} say little"
    )


@contextmanager
def _broken_ones() -> Iterator[list[str]]:
    """Collect what is wrong with broken pictures, and show it at the end, even if another error
    ends the command.
    """
    lines: list[str] = []
    try:
        yield lines
    finally:
        for line in lines[:MOST_NAMED]:
            typer.echo(f"attittud: {line}", err=True)
        if len(lines) > MOST_NAMED:
            typer.echo(f"attittud: and {len(lines) - MOST_NAMED} more", err=True)


def _readable(model: Model, items: list[Item], broken: list[str]) -> tuple[list[Item], Batch]:
    """Prepare a batch without its broken pictures, and add what is wrong with them to `broken`."""

    def ready(some: list[Item]) -> Batch:
        return model.batch([item.raw for item in some], [item.name for item in some])

    try:
        return items, ready(items)
    except InputError:
        if model.about.kind != "image":
            raise
    whole = []
    for item in items:
        try:
            ready([item])
            whole.append(item)
        except InputError as error:
            broken.append(str(error))
    return whole, ready(whole)


def _check_some(names: list[str], count: int, broken: int, *, skip_broken: bool) -> None:
    """Refuse broken pictures, unless they are skipped and others are left."""
    if not count:
        raise InputError(f"{listed(names, 3)}: there is nothing to predict in it; check the file")
    some = f"{broken} of {counted(count, 'input')} cannot be read"
    if broken == count:
        raise InputError(f"{some}, so there is nothing to predict; check the files")
    if broken and not skip_broken:
        them = "it" if broken == 1 else "them"
        raise InputError(f"{some}; repair or remove {them}, or leave {them} out with --skip-broken")
