"""Collect what only the page of a portfolio shows: leaderboard.json and the out-of-fold predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud_lab.errors import command, counted
from attittud_lab.files import read_format, read_json
from attittud_lab.output.progress import readable
from attittud_lab.portfolio.candidates import PRIMARY_ONLY, legend
from attittud_lab.portfolio.final import OUT_OF_FOLD
from attittud_lab.portfolio.leaderboard import NAME, ROUGH, VERSION, points, ranking_words
from attittud_lab.report.pictures import looks
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.runs.model import size_words

MOST_CLASSES = 25
"""With more classes there is no room for a matrix, and the most frequent confusions are listed."""
LISTED = 12
"""Rows of a list: classes, confusions."""
LIKELY = 2 / 3
"""Only a chance above this, or below its counterpart, is coloured: in between it says little."""
EXAMPLES = 4
"""Single examples that gained most, and as many that lost most."""


def portfolio(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a page; `result` is the content of result.json."""
    found, kept = read_format(folder / NAME, VERSION), load_checkpoint(folder / OUT_OF_FOLD)
    classes = [str(name) for name in read_json(folder / "model.json")["classes"]]
    about: dict[str, Any] = {"outcome": _outcome(found["worth"]), "about": "Decision", "text": found["decision"]}
    about["next"] = {"command": command("predict", folder, "INPUTS"), "why": "predicts the label of new examples"}
    if found.get("warning"):
        about["warning"] = found["warning"]
    if found["worth"] is not None and list(found["final"]["picks"]) == [PRIMARY_ONLY]:
        about["meaning"] = "All auxiliary data were dropped: the model was trained on the primary examples alone."
    columns, rows = _leaderboard(found, result)
    names_mean = legend(row["settings"] for row in found["candidates"])
    order = "Candidates that trained longer come first. Candidates that trained equally long are ordered by "
    order += f"{ranking_words(found['metric'])}. If ranking scores are equal, the lower log-loss comes first. "
    leaders = {
        "name": "Leaderboard",
        "about": f"A score is called out-of-fold because {_held_out(found)} predicted once, by a network that had not seen it. "
        f"Bars show the difference from {PRIMARY_ONLY} after the same number of steps, in points with a 95 % interval. {order}In "
        "the row of a candidate, size and prediction time are those of the model that it alone would give."
        + (f" {names_mean[0].upper()}{names_mean[1:]}." if names_mean else ""),
        "columns": columns,
        "rows": rows,
    }
    return {
        "kind": "portfolio",
        "subtitle": "; ".join(_counts(found, result["examples"])),
        "decision": about,
        "tables": [leaders],
        "portfolio": {
            "metric": found["metric"],
            "facts": list(_facts(found, result)),
            "chance": _chance(found["chance"]),
            **_drawn(found),
            "confusion": _matrix(kept, classes),
        },
        "sections": [table for table in (_sources(found), *_gains(found, kept, classes)) if table],
        "notes": list(_notes(found)),
    }


def _counts(found: Mapping[str, Any], examples: Mapping[str, int]) -> Iterator[str]:
    test = counted(examples["test"], "test example") if found["tested"] else "no test set"
    yield (
        f"{found['labels']} labels in {found['folds']} folds, {test}"
        if found["folds"] > 1
        else (f"{found['labels']} labels, of which {found['validated']} are held out, {test}")
    )
    sources = [f"{count} in {name.removeprefix('auxiliary/')}" for name, count in examples.items() if "/" in name]
    yield f"auxiliary: {', '.join(sources) or 'none'}"


def _held_out(found: Mapping[str, Any]) -> str:
    if found["validated"] == found["labels"]:
        return "every label was"
    return f"each of the {found['validated']} labels that were held out (of {found['labels']}) was"


def _outcome(worth: Mapping[str, Any] | None) -> str:
    """Return whether the auxiliary data helped, as the outcome of a comparison."""
    if worth is None or worth["low"] is None or worth["low"] <= 0 <= worth["high"]:
        return "unclear"
    if worth["low"] > 0 and worth["share"] < 1:  # it only helped at first
        return "unclear"
    return "use" if worth["low"] > 0 else "no_help"


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %"


def _points(value: float | None) -> str:
    """Format a difference in points."""
    return "undefined" if value is None else points(value)


def _range(found: Mapping[str, Any], sign: str = "") -> str:
    if found.get("low") is None or found.get("high") is None:
        return "no interval"
    low, high = (points(found[end]) if sign else f"{100 * found[end]:.1f}" for end in ("low", "high"))
    return f"{low} to {high}"


def _bar(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The bar of a difference."""
    if not found or found["difference"] is None:
        return None
    low, high = found.get("low"), found.get("high")
    mark = "?" if low is None or high is None else "▲" if low > 0 else "▼" if high < 0 else "="
    return {"mean": found["difference"], "low": low, "high": high, "values": [found["difference"]], "mark": mark}


# ------------------------------------------------------------------------------------------------------ first screen


def _chance(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rough = "" if found["calibrated"] else f"A rough figure: {ROUGH}."
    side = "above" if found["value"] > LIKELY else "below" if found["value"] < 1 - LIKELY else "around"
    return {"value": found["value"], "text": f"{100 * found['value']:.0f} %", "rough": rough, "side": side}


def _facts(found: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield what should be read first: a name, a figure and a remark each."""
    metric, worth, own, model = found["metric"], found["worth"], found["final"]["out_of_fold"], found["model"]
    if worth is not None:
        helped = {"use": "helped", "no_help": "did not help", "unclear": "unclear"}[_outcome(worth)]
        when = "" if worth["share"] == 1 else f", both after {worth['share']:.0%} of the steps"
        remark = f"{helped}: 95 % interval {_range(worth, '+')}; {worth['best']} minus {PRIMARY_ONLY}{when}"
        yield {
            "name": "Worth of the auxiliary data",
            "figure": f"{_points(worth['difference'])} points",
            "remark": remark,
        }
    guess = found.get("guess")
    always = f"; a constant guess has {_percent(guess['score'])}" if guess else ""
    chose = f"95 % interval {_range(own)}, on the labels that chose the model{always}"
    yield {"name": f"Out-of-fold {metric}", "figure": _percent(own["score"]), "remark": chose}
    if found["tested"]:
        remark = f"{result['examples']['test']} test examples, used once"
        yield {"name": f"Test {metric}", "figure": _percent(result["test"].get(metric)), "remark": remark}
    count = "one network" if model["members"] == 1 else f"a mean of {model['members']} networks"
    remark = f"{count}, {_milliseconds(model['seconds_per_prediction'])} for a prediction"
    yield {"name": "The model", "figure": size_words(model["bytes"]), "remark": remark}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms"


def _starts(found: Mapping[str, Any]) -> dict[str, int]:
    """The step before each phase, counted from the beginning."""
    lengths = found["plan"]["steps"]
    return dict(zip(lengths, accumulate(lengths.values(), initial=0), strict=False))


def _look_steps(found: Mapping[str, Any]) -> list[int]:
    return [_starts(found)[look["phase"]] + look["step"] for look in found["looks"]]


def _drawn(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores with their intervals, and curves over steps, counted through all phases."""
    starts, steps = _starts(found), _look_steps(found)
    rows, final = [], found["final"]
    if final["kind"] == "ensemble":
        rows.append(
            {"label": "the model: a mean", **final["out_of_fold"], "color": "accent", "remark": "", "curve": []}
        )
    look = looks([row["label"] for row in found["candidates"]])
    for row in found["candidates"]:
        if row["diverged"]:
            continue
        early = row["steps"] < steps[-1]
        rows.append(
            {
                "label": row["label"],
                **{name: row[name] for name in ("score", "low", "high")},
                **look[row["label"]],
                "baseline": row["label"] == PRIMARY_ONLY,
                "remark": f"stopped after {row['steps']} of {steps[-1]} steps" if early else "",
                "curve": [list(point) for point in zip(steps, row["curve"]["score"], strict=False)],
                "best": row["best"]["look"],
                "chosen": row["picks"] > 0,
            }
        )
    rungs = [
        {"step": rung["step"], "text": f"{len(rung['kept'])} of {rung['candidates']} go on"}
        for rung in found["rungs"][:-1]
    ]
    phases = [{"step": start, "text": name} for name, start in starts.items() if start]
    return {"rows": rows, "rungs": rungs, "phases": phases, "steps": steps[-1]}


# ------------------------------------------------------------------------------------------------------------ tables


def _leaderboard(found: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return a row for each candidate, and one for a mean of several, with size and time of the model it would become."""
    metric, model, final = found["metric"], found["model"], found["final"]
    columns = ["candidate", "ranking", metric, "95 %", "loss", f"minus {PRIMARY_ONLY}", "steps (best)"]
    columns += ["training", "size", "prediction"]
    rows, several, steps = list[dict[str, Any]](), final["kind"] == "ensemble", _look_steps(found)
    if several:
        own, loss = final["out_of_fold"], result["validation"].get("loss")
        cells = [f"the model: a mean of {model['members']} networks", "", _percent(own["score"]), _range(own)]
        cells += [f"{loss:.3f}" if loss is not None else "", "", "", ""]
        cells += [size_words(model["bytes"]), _milliseconds(model["seconds_per_prediction"])]
        rows.append({"cells": cells, "interval": None, "chosen": True})
    about = "" if model["members"] == 1 else "about "
    for row in found["candidates"]:
        spent = [
            readable(row["seconds"]),
            size_words(row["bytes"]),
            about + _milliseconds(row["seconds_per_prediction"]),
        ]
        if row["diverged"]:
            rows.append(
                {"cells": [row["label"], "diverged", "", "", "", "", str(row["steps"]), *spent], "interval": None}
            )
            continue
        other = row.get("to_primary_only")
        best = f"{row['steps']} ({steps[row['best']['look']]})"
        gain = _points(other["difference"]) if other else "baseline"
        ranking = _percent(row["ranking"]) if "ranking" in row else ""
        cells = [row["label"], ranking, _percent(row["score"]), _range(row), f"{row['loss']:.3f}", gain, best, *spent]
        chosen = not several and row["label"] == final["winner"]
        rows.append({"cells": cells, "interval": _bar(other), "chosen": chosen})
    return columns, rows


def _sources(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what each auxiliary source does alone, from candidates that differ only in their sources."""
    entries = [row for row in found["candidates"] if not row["diverged"] and row["label"] != PRIMARY_ONLY]
    single = [row for row in entries if row["settings"]["sources"] is not None]
    if not single:
        return None
    kinds = [_but_sources(row) for row in single]
    rows = [row for row in entries if _but_sources(row) in kinds and row.get("to_primary_only")]
    rows.sort(key=lambda row: row["to_primary_only"]["difference"] or 0.0, reverse=True)
    table, words = [], []
    for row in rows:
        gain, names = row["to_primary_only"], row["settings"]["sources"]
        sure = {"▲": "helped", "▼": "harmed"}.get((_bar(gain) or {"mark": ""})["mark"], "unclear")
        name = "all sources" if names is None else " + ".join(names)
        cells = [
            name,
            _points(gain["difference"]),
            _range(gain, "+"),
            sure,
            counted(row["steps"], "step"),
            row["label"],
        ]
        table.append({"cells": cells, "interval": _bar(gain)})
        if names is not None and len(names) == 1:
            words.append((name, _points(gain["difference"]), sure))
    ends = dict.fromkeys((words[0], words[-1])) if words else ()
    said = "; ".join(f"{name} alone {gain} ({sure})" for name, gain, sure in ends)
    return {
        "title": "Which auxiliary sources helped, and which harmed?",
        "about": f"From best to worst: {said}. Each is compared with {PRIMARY_ONLY} after the same number of steps.",
        "columns": ["source", f"minus {PRIMARY_ONLY}", "95 %", "", "after", "candidate"],
        "rows": table,
    }


def _but_sources(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row["settings"].items() if name != "sources"}


# --------------------------------------------------------------------------------------------- classes and examples


def _gains(found: Mapping[str, Any], kept: Mapping[str, Any], classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the classes and single examples that gained or lost most between the two candidates of the worth.

    Both are taken where the worth compares them, so that the tables add up to it.
    """
    candidates, targets, worth = kept["candidates"], kept["targets"], found["worth"]
    if PRIMARY_ONLY not in candidates or worth is None:
        return
    compared = kept["compared"]
    name, outputs, plain = worth["best"], compared[worth["best"]], compared[PRIMARY_ONLY]
    when = "" if worth["share"] == 1 else f", both after {worth['share']:.0%} of the steps"
    before, after = _right(plain, targets), _right(outputs, targets)
    columns = ["class", "labels", f"recall of {PRIMARY_ONLY}", f"recall of {name}", "difference", "gained", "lost"]
    rows = list[dict[str, Any]]()
    for number, label in enumerate(classes):
        of = (targets == number) if targets.ndim == 1 else (targets[:, number] == 1)
        if not of.any():
            continue
        was, now = (part[of] if targets.ndim == 1 else part[of, number] for part in (before, after))
        change = float(now.double().mean() - was.double().mean())
        cells = [label, str(int(of.sum())), _percent(float(was.double().mean())), _percent(float(now.double().mean()))]
        cells += [_points(change), str(int((now & ~was).sum())), str(int((was & ~now).sum()))]
        rows.append({"cells": cells, "interval": _bar({"difference": change})})
    rows.sort(key=lambda row: row["interval"]["mean"] if row["interval"] else 0.0, reverse=True)
    shown = rows if len(rows) <= 2 * LISTED else rows[:LISTED] + rows[-LISTED:]
    left = "" if len(shown) == len(rows) else f" The {len(rows) - len(shown)} classes between these are left out."
    yield {
        "title": f"Which classes gained, and which lost, against {PRIMARY_ONLY}?",
        "about": f"Out-of-fold recall of {name} and of {PRIMARY_ONLY}{when}. Gained: labels that only {name} predicts correctly. "
        f"Lost: labels that only {PRIMARY_ONLY} predicts correctly. A class with few labels proves nothing.{left}",
        "columns": columns,
        "rows": shown,
    }
    yield _single_examples(kept, classes, plain, outputs, name, when)


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return which predictions are right: n, or n x labels."""
    return outputs.argmax(1) == targets if targets.ndim == 1 else (outputs > 0) == (targets == 1)


def _single_examples(
    kept: Mapping[str, Any], classes: Sequence[str], plain: Tensor, outputs: Tensor, name: str, when: str
) -> dict[str, Any]:
    """Return the examples whose true class (or labels) became much more, or much less, probable."""
    targets, several = kept["targets"], kept["targets"].ndim == 2
    was, now = (_true_probability(part, targets) for part in (plain, outputs))
    order = torch.argsort(was - now, stable=True).tolist()
    shown = order if len(order) <= 2 * EXAMPLES else order[:EXAMPLES] + order[-EXAMPLES:]
    names = kept["names"] or [f"row {row + 1}" for row in kept["rows"].tolist()]
    found = []
    for one in shown:
        true, said = (targets[one] == 1, outputs[one] > 0) if several else (targets[one], outputs[one].argmax())
        cells = [names[one], _label(true, classes), _percent(float(was[one])), _percent(float(now[one]))]
        cells += [_points(float(now[one] - was[one])), _label(said, classes)]
        found.append({"cells": cells, "interval": None})
    what = "the right answer (the mean over the labels of an example)" if several else "the true class"
    heading = "true labels" if several else "true class"
    return {
        "title": "Which examples changed most?",
        "about": f"The out-of-fold probability of {what}, for {name} and {PRIMARY_ONLY}{when}. Rows are counted from 1.",
        "columns": ["example", heading, PRIMARY_ONLY, name, "change", f"{name} predicts"],
        "rows": found,
    }


def _true_probability(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of each example's class; with several labels at once, the mean probability of their truth."""
    if targets.ndim == 1:
        return outputs.double().softmax(1).gather(1, targets[:, None])[:, 0]
    likely = outputs.double().sigmoid()
    return torch.where(targets == 1, likely, 1 - likely).mean(1)


def _label(found: Tensor, classes: Sequence[str]) -> str:
    """Name a class by its number, or all labels that are true."""
    if found.ndim == 0:
        return classes[int(found)]
    return " + ".join(name for name, true in zip(classes, found.tolist(), strict=True) if true) or "none"


def _matrix(kept: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Count true and predicted classes; with several labels at once, return the four counts of each label."""
    targets, outputs = kept["targets"], kept["model"]
    if targets.ndim == 2:
        said, is_ = outputs > 0, targets == 1
        parts = (is_ & said, is_ & ~said, ~is_ & said, ~is_ & ~said)
        counts = torch.stack([part.sum(0) for part in parts], 1).tolist()
        columns = ["found", "missed", "false alarm", "correctly absent"]
        return {"kind": "labels", "columns": ["label", *columns], "names": list(classes), "counts": counts}
    total = len(classes)
    table = torch.bincount(targets * total + outputs.argmax(1), minlength=total * total).reshape(total, total)
    if total <= MOST_CLASSES:
        return {"kind": "matrix", "columns": list(classes), "names": list(classes), "counts": table.tolist()}
    wrong = table.clone().fill_diagonal_(0).flatten()
    order = [place for place in wrong.argsort(descending=True, stable=True)[:LISTED].tolist() if wrong[place]]
    pairs = [[classes[place // total], classes[place % total], int(wrong[place])] for place in order]
    return {"kind": "pairs", "columns": ["true class", "predicted", "labels"], "names": [], "counts": pairs}


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    plan = found["plan"]
    memory = f" and {found['peak_memory'] / 1e6:.0f} MB of memory per process" if found.get("peak_memory") else ""
    yield (
        f"The trials took as much training as {found['runs']:.1f} full runs; the final training is not counted. The forecast, "
        f"which counts it, was {plan['runs']:.1f}. At most {found['peak_disk'] / 1e6:.3g} MB of disk{memory} were "
        "needed. The training time of a candidate covers all its folds."
    )
    if plan["decided"]:
        yield f"{plan['decided']}."
    if found["not_validated"]:
        names = ", ".join(map(str, found["not_validated"]))
        yield f"These classes have too few examples to be held out and are used for training only: {names}."
    for row in found["candidates"]:
        if row["diverged"]:
            yield f"{row['label']} diverged: {row['diverged']}"
    yield (
        "Intervals show how much a score would vary with other examples of the same kind. They ignore that the same labels "
        "chose the best candidate, which makes its score a little too good."
        + ("" if found["tested"] else " Without a test set, nothing shows how much.")
    )
