"""`attittud predict`: labels and probabilities for new inputs, from the folder of a finished
run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attittud_lab.commands import LabelColumn
from attittud_lab.errors import InputError, counted, listed
from attittud_lab.output.interrupts import interruptible, starting
from attittud_lab.output.progress import display

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attittud_lab.predict.inputs import Item
    from attittud_lab.predict.model import Batch, Model

    Digests = npt.NDArray[np.uint64]

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
_COLUMN = typer.Option(
    "--input",
    metavar="COLUMN",
    help="Column with the image or the text, if it is not found automatically.",
)
_SKIP = typer.Option(
    "--skip-broken",
    help=f"Leave out pictures that cannot be read; the first {MOST_NAMED} are named.",
)
_RAW = typer.Option(
    "--raw",
    help="Write texts to csv as they are. By default an apostrophe precedes those that a spreadsheet "
    "would take for formulas.",
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
    input_column: Annotated[str | None, _COLUMN] = None,
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
        raise InputError("nothing to predict; name a folder or files after RUN, or - for stdin")
    if raw and output is not None and output.suffix.lower() != ".csv":
        raise InputError(f"--raw is for csv, but {output} is no csv file; leave it out")
    with starting():
        from attittud_lab.predict.restore import load

    with interruptible(lambda: "no file is left half-written"):
        model = load(run, device)
        _check_options(model, threshold, input_column, skip_broken=skip_broken)
        if export is not None:
            _export(model, export)
        if model.note and not quiet:
            typer.echo(f"attittud: {model.note}", err=True)
        if inputs:
            # How many inputs the run was trained on costs another look at every picture, and with
            # --quiet nothing shows it.
            digests_of_run = None
            if not quiet:
                digests_of_run = _digests_of(run)
            predictor = _Predictor(model, threshold, digests_of_run, skip_broken=skip_broken)
            _predict(predictor, inputs, output, (input_column, label_column), quiet=quiet, raw=raw)
            if not quiet:
                for line in predictor.summary(output):
                    typer.echo(line, err=True)


def _export(model: Model, path: Path) -> None:
    """Write the model as one program, and print the file."""
    if path.suffix != ".pt2" or not path.parent.is_dir():
        raise InputError(f"{path}: give a file that ends in .pt2, in an existing folder")
    model.export(path)
    typer.echo(str(path))


def _check_options(
    model: Model, threshold: float | None, input_column: str | None, *, skip_broken: bool
) -> None:
    """Refuse options that this model has no use for."""
    kind = model.about.kind
    if threshold is not None and not model.several:
        raise InputError("--threshold is for models of several labels at once; leave it out")
    if skip_broken and kind != "image":
        raise InputError(f"--skip-broken is for pictures, not for {kind}s; leave it out")
    if input_column is not None and kind == "table":
        raise InputError("--input: this model reads all columns of a table; leave it out")


def _digests_of(run: Path) -> Digests | None:
    """Return the digests of the run's training and validation examples; None if it records none.

    If the file is damaged, a note says so and the result is None, because no prediction depends on
    it.
    """
    from attittud_lab.predict.restore import used_examples

    try:
        return used_examples(run)
    except InputError as error:
        reason = "cannot tell how many inputs were also in the training or validation data"
        typer.echo(f"attittud: {reason}: {error}", err=True)
        return None


def _predict(
    predictor: _Predictor,
    names: list[str],
    output: Path | None,
    columns: tuple[str | None, str | None],
    *,
    quiet: bool,
    raw: bool,
) -> None:
    """Read the inputs with these names, predict batch by batch, and write the predictions.

    `columns` are the values of --input and --label. Without one, the job's column is taken.
    """
    from attittud_lab.predict.inputs import Inputs
    from attittud_lab.predict.model import AT_ONCE
    from attittud_lab.predict.outputs import check_output, open_output

    model = predictor.model
    check_output(output, names, model.classes, several=model.several)
    primary = model.config.data.primary
    input_column, label_column = columns
    options = []
    if input_column is not None:
        options.append("--input")
    if label_column is not None:
        options.append("--label")
    inputs = Inputs(
        model.about.kind,
        model.classes,
        model.several,
        input_column or primary.input,
        label_column or primary.label,
        options,
    )
    total, items = inputs.read(names)
    on_screen = output is None and sys.stdout.isatty()  # then the screen shows the predictions
    shown = display(unit="inputs", quiet=quiet or on_screen)
    opened = open_output(output, model.classes, several=model.several, raw=raw)
    with _broken_at_end(predictor.broken), shown, opened as write:
        shown.phase("predict", total, 0)
        while chunk := list(islice(items, AT_ONCE)):
            predictor.predict(chunk, write)
            shown.advance(len(chunk), {})
        predictor.check(names)


class _Predictor:
    """Predicts batches, and counts for a summary: inputs, right labels, broken pictures, and inputs
    that the run was trained on.
    """

    def __init__(
        self,
        model: Model,
        threshold: float | None,
        digests_of_run: Digests | None,
        *,
        skip_broken: bool,
    ) -> None:
        from attittud_lab.predict.model import THRESHOLD

        self.model = model
        self.broken: list[str] = []
        """What is wrong with broken pictures."""
        self._threshold = THRESHOLD
        if threshold is not None:
            self._threshold = threshold
        self._digests_of_run = digests_of_run
        """Digests of the run's training and validation examples; None: inputs among them are not counted."""
        self._skip_broken = skip_broken
        self._inputs = 0
        self._labelled = 0
        """Inputs whose label is known; with several labels at once, known labels."""
        self._right = 0
        self._trained_on = 0
        """Inputs that are among the examples of the run."""

    def predict(self, items: list[Item], write: Callable[..., None]) -> None:
        """Predict one batch, hand the predictions to `write`, and count.

        Broken pictures are noted. If they are not skipped, nothing is written after the first.
        """
        model = self.model
        readable, batch = self._readable(items)
        self._inputs += len(items)
        if self.broken and not self._skip_broken:
            return  # nothing is predicted any more, but all broken pictures are found
        if not readable:
            return
        scores = model.scores(batch)
        labels = model.labels(scores, self._threshold)
        write(readable, labels, model.probabilities(scores))
        if self._digests_of_run is not None:
            raws = [item.raw for item in readable]
            self._trained_on += model.count_used(raws, batch, self._digests_of_run)
        for item, label in zip(readable, labels, strict=True):
            if item.truth is not None:
                self._judge(item.truth, label)

    def _judge(self, truth: Collection[str], label: str | Sequence[str]) -> None:
        """Count whether a prediction is right; of several labels at once each counts, also one that
        is rightly absent.
        """
        if isinstance(label, str):
            self._labelled += 1
            self._right += label in truth
        else:
            self._labelled += len(self.model.classes)
            self._right += len(self.model.classes) - len({*truth} ^ {*label})

    def _readable(self, items: list[Item]) -> tuple[list[Item], Batch]:
        """Return the items that can be read, and the batch that they make.

        If a whole batch fails, its pictures are tried one by one, and broken ones are noted.
        """
        try:
            return items, self._batch(items)
        except InputError:
            if self.model.about.kind != "image":
                raise
        readable = []
        for item in items:
            try:
                self._batch([item])
                readable.append(item)
            except InputError as error:
                self.broken.append(str(error))
        return readable, self._batch(readable)

    def _batch(self, items: list[Item]) -> Batch:
        return self.model.batch([item.raw for item in items], [item.name for item in items])

    def check(self, names: list[str]) -> None:
        """Refuse broken pictures, unless they are skipped and others are left."""
        if not self._inputs:
            raise InputError(f"{listed(names, 3)}: there is nothing to predict; check the file")
        broken = f"{len(self.broken)} of {counted(self._inputs, 'input')} cannot be read"
        if len(self.broken) == self._inputs:
            raise InputError(f"{broken}, so there is nothing to predict; check the files")
        if self.broken and not self._skip_broken:
            advice = "repair or remove them, or leave them out with --skip-broken"
            raise InputError(f"{broken}; {advice}")

    def summary(self, output: Path | None) -> list[str]:
        """Return what to show at the end: counts and accuracy, then a note on inputs that the run
        was trained on, if there are any.
        """
        done = self._inputs - len(self.broken)
        text = counted(done, "prediction")
        if output is not None:
            text += f" in {output}"
        if self.broken:
            text += f", {counted(len(self.broken), 'input')} left out"
        if self._labelled:
            judged = f"{counted(self._labelled, 'input')} whose label is known"
            if self.model.several:
                judged = counted(self._labelled, "known label")
            text += f", accuracy {self._right / self._labelled:.4f} on {judged}"
        if not self._trained_on:
            return [text]
        reason = "are also in the training or validation data of this run; they say little"
        if self.model.about.kind == "table":  # rows with few distinct values can be equal by chance
            reason = "have the same features as training or validation rows of this run"
        return [text, f"{self._trained_on} of {counted(done, 'input')} {reason}"]


@contextmanager
def _broken_at_end(broken: list[str]) -> Iterator[None]:
    """Show what is wrong with broken pictures at the end, even if another error ends the block.

    The block adds to `broken`.
    """
    try:
        yield
    finally:
        for line in broken[:MOST_NAMED]:
            typer.echo(f"attittud: {line}", err=True)
        if len(broken) > MOST_NAMED:
            typer.echo(f"attittud: and {len(broken) - MOST_NAMED} more", err=True)
