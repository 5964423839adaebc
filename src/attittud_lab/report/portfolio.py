"""Collect what only the page of a portfolio shows: leaderboard.json and the out-of-fold
predictions.

`tables` has the leaderboard, `details` all figures of the model, and `sections` the tables by
source, by class and by example. `portfolio` has the first screen (`facts`, `chance`), the pictures
of the scores (`rows`, `phases`, `steps`), what labels mean (`translations`), which look wrong
(`suspects`), and the confusions of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from attittud_lab.errors import counted
from attittud_lab.files import read_format
from attittud_lab.output.progress import readable
from attittud_lab.portfolio import words
from attittud_lab.portfolio.final import OUT_OF_FOLD
from attittud_lab.portfolio.leaderboard import NAME, VERSION, answer
from attittud_lab.report.cells import auxiliary, bar, capitalised, difference, ends, percent
from attittud_lab.report.changes import changes, confusions
from attittud_lab.report.pictures import looks
from attittud_lab.report.translations import suspects, translated
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.runs.model import described, size_words, time_words

INSTEAD = "what you would have used instead"
LIKELY = 2 / 3
"""Only a chance above this, or below its counterpart, is coloured: in between it says little."""


def portfolio(folder: Path, result: Mapping[str, Any], page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a page that differ from the `page` of other runs."""
    board = read_format(folder / NAME, VERSION)
    out_of_fold = load_checkpoint(folder / OUT_OF_FOLD)
    classes = described(folder).classes
    _check_fit(board, out_of_fold, classes)
    sections = [_sources(board), *changes(board, out_of_fold, classes)]
    figures = page["tables"][0] | {
        "title": "All figures of the model: out-of-fold and on the test set",
        "columns": ["figure", "out-of-fold", "test"],
    }
    return {
        "kind": "portfolio",
        "title": f"Portfolio: {page['title'].rpartition(', ')[2]}",
        "subtitle": "; ".join(_counts(board, result["examples"])),
        "tables": [_leaderboard(board, result)],
        "details": [figures],
        "curves": _curves(board, page["curves"][0][0]),
        "portfolio": {
            "metric": board["metric"],
            "facts": list(_facts(board, result)),
            "chance": _chance(board["chance"]),
            "rows": _scores(board),
            **_steps(board),
            "translations": translated(board),
            "suspects": suspects(board),
            "confusion": confusions(out_of_fold, classes),
        },
        "sections": list(filter(None, sections)),
        "notes": list(_notes(board)),
    }


def _check_fit(
    board: Mapping[str, Any], out_of_fold: Mapping[str, Any], classes: Sequence[str]
) -> None:
    """Refuse files of different runs; raises ValueError."""
    labels = {row["label"] for row in board["candidates"]}
    rows = {len(out_of_fold[name]) for name in ("rows", "targets", "folds", "model")}
    if rows != {board["validated"]} or not labels >= {*out_of_fold["candidates"]}:
        raise ValueError(f"{OUT_OF_FOLD} and {NAME} are of different runs")
    if out_of_fold["model"].shape[1] != len(classes):
        raise ValueError(f"{OUT_OF_FOLD} has not the classes of the model")


def _curves(board: Mapping[str, Any], series: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the curves of the winner's training on all labels, if there was one.

    The networks of folds have none. The score by step is drawn above, with all candidates.
    """
    if not series["train"]:
        return []
    validation = dict(series["validation"])
    validation.pop(f"validation/{board['metric']}", None)
    return [[{**series, "label": board["final"]["winner"], "validation": validation}]]


# ------------------------------------------------------------------------------------- first screen


def _counts(board: Mapping[str, Any], examples: Mapping[str, int]) -> Iterator[str]:
    """Say how many examples there are: primary ones and test examples, then those of each source."""
    test = "no test set"
    if board["tested"]:
        test = counted(examples["test"], "test example")
    if board["folds"] > 1:
        yield f"{board['labels']} labels in {board['folds']} folds, {test}"
    else:
        yield f"{board['labels']} labels, of which {board['validated']} are held out, {test}"
    sources = [f"{count} in {name}" for name, count in auxiliary(examples).items()]
    yield f"auxiliary: {', '.join(sources) or 'none'}"


def _chance(estimate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the chance that the auxiliary data help as the page shows it, or None if there is no
    estimate. Its `side` decides the colour: above or below an even chance, or around it.
    """
    if estimate is None:
        return None
    value = estimate["value"]
    side = "around"
    if value > LIKELY:
        side = "above"
    elif value < 1 - LIKELY:
        side = "below"
    rough = ""
    if not estimate["calibrated"]:
        rough = f"A rough figure: {words.ROUGH}."
    return {"value": value, "text": f"{100 * value:.0f} %", "rough": rough, "side": side}


def _facts(board: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield what should be read first: a name, a figure and a remark each."""
    metric = board["metric"]
    worth = board["worth"]
    model = board["model"]
    score = board["final"]["out_of_fold"]
    if worth is not None:
        helped = words.ANSWERS[answer(worth)]
        pair = f"{worth['best']} minus {worth['reference']}"
        yield {
            "name": "Worth of the auxiliary data",
            "figure": f"{difference(worth['difference'])} points",
            "remark": f"{helped}: 95 % interval {ends(worth, '+')}; {pair}",
        }
    instead = next((row for row in board["candidates"] if row["without_us"]), None)
    if instead is not None:
        yield {
            "name": "Without us",
            "figure": percent(instead["score"]),
            "remark": f"{INSTEAD}: {instead['label']}",
        }
    guess = board["guess"]
    yield {
        "name": f"Out-of-fold {metric}",
        "figure": percent(score["score"]),
        "remark": f"95 % interval {ends(score)}, on the labels that chose the model; a constant guess "
        f"has {percent(guess['score'])}",
    }
    if board["tested"]:
        yield {
            "name": f"Test {metric}",
            "figure": percent(result["test"].get(metric)),
            "remark": f"{result['examples']['test']} test examples, used once",
        }
    count = "one model"
    if model["members"] != 1:
        count = f"a mean of {model['members']} models"
    yield {
        "name": "The model",
        "figure": size_words(model["bytes"]),
        "remark": f"{count}, {time_words(model['seconds_per_prediction'])} for a prediction",
    }


def _is_mean(board: Mapping[str, Any]) -> bool:
    """Whether the model is a mean of several candidates."""
    return board["final"]["kind"] == "ensemble" and len(board["final"]["picks"]) > 1


# ----------------------------------------------------------------------------------------- pictures


def _starts(networks: Mapping[str, Any]) -> dict[str, int]:
    """Return the step before each phase of networks, counted from the beginning."""
    lengths = networks["plan"]["steps"]
    return dict(zip(lengths, accumulate(lengths.values(), initial=0), strict=False))


def _look_steps(board: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the steps at which networks were evaluated, counted over all phases, by learner."""
    steps = {}
    for learner, networks in board["networks"].items():
        starts = _starts(networks)
        steps[learner] = [starts[look["phase"]] + look["step"] for look in networks["looks"]]
    return steps


def _scores(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the picture of scores draws: one row for the model if it is an ensemble, and one
    for each candidate that did not diverge.

    A row has the score with its interval, colours, a remark and, for a network, the curve of its
    score over steps.
    """
    steps_of_learner = _look_steps(board)
    rows: list[dict[str, Any]] = []
    if _is_mean(board):
        score = board["final"]["out_of_fold"]
        model = {"label": "the model: a mean", **score, "color": "accent"}
        rows.append({**model, "remark": "", "curve": []})
    colours = looks([candidate["label"] for candidate in board["candidates"]])
    for candidate in board["candidates"]:
        if candidate["diverged"]:
            continue
        row = {name: candidate[name] for name in ("label", "score", "low", "high")}
        row |= colours[candidate["label"]]
        row["baseline"] = candidate["reference"]
        row["chosen"] = candidate["picks"] > 0
        row["remark"] = ""
        if candidate["without_us"]:
            row["remark"] = INSTEAD
        row["curve"] = []
        if candidate["kind"] == "network":
            steps = steps_of_learner[candidate["settings"]["learner"]]
            row["curve"] = list(zip(steps, candidate["curve"]["score"], strict=False))
            row["best"] = candidate["best"]["look"]
        rows.append(row)
    return rows


def _steps(board: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps at which phases of networks begin, and the last step, for the picture of
    scores by step. Phases of several learners differ, so that none are drawn.
    """
    most = max((steps[-1] for steps in _look_steps(board).values()), default=0)
    phases: list[dict[str, Any]] = []
    if len(board["networks"]) == 1:
        (networks,) = board["networks"].values()
        for name, start in _starts(networks).items():
            if start:  # the first phase needs no line
                phases.append({"step": start, "text": name})
    return {"phases": phases, "steps": most}


# ------------------------------------------------------------------------------------------- tables


def _leaderboard(board: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of all candidates, from the best to the worst. If the model is a mean of
    several, it has the first row.
    """
    metric = board["metric"]
    final = board["final"]
    columns = [
        "candidate",
        "features",
        "learner",
        "use",
        metric,
        "95 %",
        "loss",
        "minus the best alone",
        "steps (best)",
        "time",
    ]
    rows: list[dict[str, Any]] = []
    if _is_mean(board):
        score = final["out_of_fold"]
        loss = ""
        if result["validation"]["loss"] is not None:
            loss = f"{result['validation']['loss']:.3f}"
        cells = [f"the model: a mean of {board['model']['members']} models", "", "", ""]
        cells += [percent(score["score"]), ends(score), loss, "", "", ""]
        rows.append({"cells": cells, "interval": None, "chosen": True})
    steps = _look_steps(board)
    for row in board["candidates"]:
        chosen = final["kind"] == "single" and row["label"] == final["winner"]
        rows.append(_leaderboard_row(row, steps, chosen=chosen))
    held_out = "every label was"
    if board["validated"] != board["labels"]:
        held_out = (
            f"each of the {board['validated']} labels that were held out (of {board['labels']}) was"
        )
    about = (
        f"A score is called out-of-fold because {held_out} predicted once, by a model that had not "
        "seen it. Bars show the difference from the best candidate without auxiliary data, in points "
        f"with a 95 % interval. Candidates are ordered by {words.ranking(metric)}."
    )
    legend = words.legend(row["settings"] for row in board["candidates"])
    if legend:
        about += f" {capitalised(legend)}."
    return {"name": "Leaderboard", "about": about, "columns": columns, "rows": rows}


def _leaderboard_row(
    row: Mapping[str, Any], steps: Mapping[str, list[int]], *, chosen: bool
) -> dict[str, Any]:
    """Return the cells and the bar of a candidate.

    `steps` are those of the looks by learner; `chosen` marks the candidate that is the model.
    """
    settings = row["settings"]
    if row["kind"] == "simple":
        use = " ".join([settings["use"], " + ".join(settings["sources"])]).strip()
        parts = [settings["features"], settings["learner"], use]
    else:
        # A pretrained network is called "FEATURES, finetuned", the other one "network".
        features, _, learner = settings["learner"].rpartition(", ")
        parts = [features, learner, settings["name"]]
    time = readable(row["seconds"])
    if row["diverged"]:
        cells = [row["label"], *parts, "diverged", "", "", "", str(row["steps"]), time]
        return {"cells": cells, "interval": None, "chosen": False}
    gain = row.get("to_reference")
    minus_best_alone = "baseline"
    if gain:
        minus_best_alone = difference(gain["difference"])
    best = ""
    if row["kind"] == "network":
        best = f"{row['steps']} ({steps[settings['learner']][row['best']['look']]})"
    cells = [row["label"], *parts, percent(row["score"]), ends(row), f"{row['loss']:.3f}"]
    cells += [minus_best_alone, best, time]
    return {"cells": cells, "interval": bar(gain), "chosen": chosen}


def _sources(board: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a table with the best candidate of each source alone, and of all sources together;
    None if candidates have only one choice of sources.
    """
    best: dict[str, Mapping[str, Any]] = {}
    for row in board["candidates"]:  # from the best to the worst
        sources = row["settings"]["sources"]  # None for networks that train on all
        if row["diverged"] or row["alone"] or "to_reference" not in row:
            continue
        name = "all sources"
        if sources is not None:
            name = " + ".join(sources)
        best.setdefault(name, row)
    if len(best) < 2:
        return None
    rows = []
    parts = []
    order = sorted(best.items(), key=lambda item: item[1]["to_reference"]["difference"] or 0.0)
    for name, row in reversed(order):
        gain = row["to_reference"]
        points = difference(gain["difference"])
        helped = words.ANSWERS[answer(gain)]
        cells = [name, points, ends(gain, "+"), helped, row["label"]]
        rows.append({"cells": cells, "interval": bar(gain)})
        parts.append(f"{name} {points} ({helped})")
    return {
        "title": "Which auxiliary sources helped, and which harmed?",
        "about": f"The best candidate with each source, from best to worst: {'; '.join(parts)}. Each is "
        "compared with the best candidate without auxiliary data.",
        "columns": ["source", "minus the best alone", "95 %", "", "candidate"],
        "rows": rows,
    }


def _notes(board: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notes below the tables."""
    for line in board["simple"]["lines"]:
        yield f"{capitalised(line)}."
    for learner, networks in board["networks"].items():
        plan = networks["plan"]
        yield (
            f"The networks of the learner {learner} took about {plan['runs']:.0f} full runs. The time of "
            "a candidate covers all its folds."
        )
        if plan["decided"]:
            yield f"{plan['decided']}."
    if board["not_validated"]:
        yield f"{capitalised(words.rare(', '.join(map(str, board['not_validated']))))}."
    for row in board["candidates"]:
        if row["diverged"]:
            yield f"{row['label']} diverged: {row['diverged']}"
    note = (
        "Intervals show how much a score would vary with other examples of the same kind. They ignore "
        "that the same labels chose the best candidate, which makes its score a little too good."
    )
    if not board["tested"]:
        note += " Without a test set, nothing shows how much."
    yield note
