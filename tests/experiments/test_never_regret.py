"""The never-regret suite: its halves, its data, its runner in miniature, its statistics, and its page."""

import json
import os
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from statistics import fmean

import pytest
import torch

from tests.helpers.interrupting import interrupted

NAME = "experiments.never-regret"


pairs, offers, train, strategies, jobs, record, table, page = (
    import_module(f"{NAME}.{part}")
    for part in ("pairs", "offers", "train", "strategies", "jobs", "record", "table", "page")
)


main = import_module(f"{NAME}.__main__")


OFFLINE = [
    *("digits_right", "digits_sources", "digits_parity", "wine_random", "cancer_duplicated", "diabetes_measures"),
    *("digits_large", "hastie_random", "friedman_terms", "clusters_duplicated", "clusters_sources"),
]


def test_the_page_is_what_the_results_give():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.read()), f"run `python -m {NAME}.page`"


WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def quoted(found):
    """What prose says of the held-out pairs at equal steps, by page: these words must be in it."""
    mean = {row: fmean(one.mean(row) for one in found) for row in table.ROWS}
    seeds = sorted({len(one.values["auto"]) for one in found})
    count = Counter(one.verdict for one in found)
    loses, gains, safe, unclear = (WORDS[count[name]] for name in ("**loses**", "gains", "no regret", "unclear"))
    worst = max(one.mean("primary_only") - one.mean("auto") for one in found)
    above, below = mean["auto"] - mean["primary_only"], mean["multitask"] - mean["auto"]
    times = f"for {table.goals(found)[3].measured} times the time of `auto`"
    accuracies = [
        f"| `auto` | {mean['auto']:.1f} | | `primary_only` | {mean['primary_only']:.1f} |",
        f"| multitask, tuned with eight runs | {mean['multitask']:.1f} |",
        f"| best of nine presets on the same validation set *, {times} | {mean['best_preset']:.1f} |",
        f"| cosine gating * | {mean['cosine_gate']:.1f} | | PCGrad * | {mean['pcgrad']:.1f} | | Bloop * | {mean['bloop']:.1f} |",
    ]
    lost = [(f"`{one.pair}`", f"{-one.regret.mean:.1f}") for one in found if one.verdict == "**loses**"]
    in_table = [f"| {pair} | {points} |" for pair, points in lost if pair != "`hastie_random`"]
    fewer = sorted(set.intersection(*(set(one.values["best_preset"]) for one in found)))
    assert all(
        set(one.values[row]) == set(fewer) for one in found for row in ("best_preset", "pcgrad", "cosine_gate", "bloop")
    )
    on_those = page.mean_over(found, "auto", fewer)
    in_short = [
        f"{above:.1f} points above `primary_only`. On average it is {below:.1f} below multitask tuned with eight runs",
        f"It is at most {worst:.1f} below `primary_only` anywhere",
    ]
    assert count["gains"] == 0  # "on no pair"
    return {
        "README.md": in_short,
        "docs/which-weights.md": [
            *in_short,
            "On no pair was `auto` shown to beat the better of `primary_only` and tuned multitask",
        ],
        "docs/appendix/auto.md": [
            f"the first {' or '.join(WORDS[n] if n < len(WORDS) else str(n) for n in seeds)} seeds",
            f"rows marked * have the first {len(fewer)} seeds, on which `auto` has {on_those:.1f} %",
            *accuracies,
            (
                f"loses on {loses} pairs and gains on {gains}. On {safe} pairs the interval excludes a loss of more than a "
                f"point, which counts as no regret, and {unclear} pairs are unclear"
            ),
            *in_table,
            f"(`hastie_random` {dict(lost)['`hastie_random`']} points lost)",
        ],
    }


def test_prose_quotes_the_committed_results():
    header, _, runs = page.read()["held_out"]
    for name, phrases in quoted(table.outcomes(header, runs, "at_steps")).items():
        text = " ".join((page.DOCS.parents[1] / name).read_text(encoding="utf-8").split())
        for phrase in phrases:
            assert phrase in text, f"{name} quotes other figures than the results; they say: {phrase}"


def test_prose_quotes_the_development_half():
    header, _, runs = page.read()["development"]
    found = table.outcomes(header, runs, "at_steps")
    mean = {row: fmean(one.mean(row) for one in found) for row in table.ROWS}
    lost, gained = (
        [f"`{one.pair}` {abs(one.regret.mean):.1f}" for one in found if one.verdict == verdict]
        for verdict in ("**loses**", "gains")
    )
    text = " ".join((page.DOCS / "auto.md").read_text(encoding="utf-8").split())
    assert len(lost) == 2 and len(gained) == 1 and "`auto` loses on two pairs" in text and "and gains on one" in text
    assert all(phrase in text for phrase in (*lost, *gained))
    text = text[text.index("| strategy, development pairs |") :]
    for name, row in (
        ("`auto`", "auto"),
        ("`primary_only`", "primary_only"),
        ("multitask, tuned with eight runs", "multitask"),
        (f"best of nine presets, for {table.goals(found)[3].measured} times the time of `auto`", "best_preset"),
    ):
        assert f"| {name} | {mean[row]:.1f} |" in text


def test_halves_are_declared_whole_and_of_every_kind():
    development, held_out = pairs.SPLIT["development"], pairs.SPLIT["held_out"]
    assert sorted(development + held_out) == sorted(pairs.PAIRS) == sorted(json.loads(train.RATES.read_text()))
    for half in (development, held_out):
        assert len(half) >= 8
        chosen = [pairs.PAIRS[name] for name in half]
        assert {pair.kind for pair in chosen} == {"image", "text", "table"}
        assert sum(pair.built_to == pairs.HURTS for pair in chosen) >= 3
        assert any(pair.built_to == pairs.HELPS for pair in chosen)


def test_held_out_pairs_need_the_flag():
    assert pairs.choose(["digits_large"], held_out=True)
    with pytest.raises(SystemExit, match="digits_large is held out"):
        pairs.choose(["digits_right", "digits_large"], held_out=False)
    with pytest.raises(SystemExit, match="unknown pair 'digit'"):
        pairs.choose(["digit"], held_out=True)


@pytest.mark.parametrize("name", OFFLINE)
def test_nothing_that_is_tested_on_is_trained_on(name):
    data = pairs.PAIRS[name].build(3)
    known = {tuple(row.tolist()) for row in data.test[0]}
    own = [data.primary, data.validation]
    for x, _ in own + ([] if name == "diabetes_measures" else list(data.auxiliary.values())):
        assert not known & {tuple(row.tolist()) for row in x}
    assert not {tuple(row.tolist()) for row in own[0][0]} & {tuple(row.tolist()) for row in own[1][0]}
    assert len(data.auxiliary) == pairs.PAIRS[name].sources
    assert set(data.primary[1].tolist()) == set(range(data.classes))


def test_as_many_labels_are_wrong_as_declared():
    y = torch.randint(10, (1000,))
    assert (offers.wrong(y, 10, 0.3, "shifted", 0) != y).sum() == 300
    shifted = offers.wrong(y, 10, 1.0, "shifted", 0)
    assert torch.equal(shifted, (y + 1) % 10)
    assert 850 < (offers.wrong(y, 10, 1.0, "random", 0) != y).sum() < 950


def test_runs_are_paired_and_a_longer_run_begins_like_a_shorter_one():
    pair, entry = pairs.PAIRS["digits_right"], strategies.entries()["multitask 0.4"]
    seen = [
        [(c.step, c.test) for c in train.run(pair, entry.make, seed, steps=n)]
        for seed, n in ((0, 40), (0, 60), (1, 40))
    ]
    assert seen[0] == seen[1][:2]
    assert seen[0] != seen[2]


@pytest.mark.parametrize(("weight", "primary", "auxiliary"), [(4.0, 0.25, 1.0), (0.2, 1.0, 0.2)])
def test_more_auxiliary_weight_does_not_mean_larger_steps(weight, primary, auxiliary):
    model = torch.nn.Linear(2, 1, bias=False)

    class Losses:
        @property
        def micro(self):
            return [self]

        def primary(self, detach=False):
            return model(torch.tensor([[1.0, 0.0]])).flatten()

        def auxiliary(self):
            return {"a": model(torch.tensor([0.0, 1.0])).sum()}

    strategies.named("multitask", (weight,), model, ["a"], 0).step(Losses())
    torch.testing.assert_close(model.weight.grad, torch.tensor([[primary, auxiliary]]))


def test_judges_are_validation_examples_and_change_no_batch():
    pair, seen, batches = pairs.PAIRS["digits_right"], [], []

    class Spy:
        def __init__(self, model, sources, seed): ...

        def step(self, losses):
            if asked:
                losses.judge()
                seen.append({tuple(row.tolist()) for row in losses._judges[0]})
            batches.append(losses._primary[0])
            losses.primary().mean().backward()

    for asked in (True, False):
        train.run(pair, Spy, 0, judges=asked, steps=4)
    validation = {tuple(row.tolist()) for row in pair.build(0).validation[0]}
    assert all(len(judges) == train.JUDGES and judges < validation for judges in seen)
    assert seen[0] != seen[1]
    assert all(torch.equal(x, y) for x, y in zip(batches[:4], batches[4:], strict=True))
    asked = True
    with pytest.raises(ValueError, match="judges=True"):
        train.run(pair, Spy, 0, steps=1)


def test_stopping_looks_at_validation_and_not_at_the_test_set():
    checks = [
        train.Check(10, 80, 0.4, 10, 1),
        train.Check(20, 80, 0.5, 20, 2),
        train.Check(30, 70, 0.1, 99, 3),
    ]
    assert train.best(checks, 30).step == 20
    assert train.best(checks, 10).step == 10


def run_suite(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["never-regret", "--quick", "--workers", "1", *map(str, arguments)])
    main.main()


def test_tiny_suite_is_written_resumed_and_refused(monkeypatch, tmp_path, capsys):
    given = ["--pairs", "wine_random", "--out", tmp_path, "--seeds"]
    file = tmp_path / "development.jsonl"
    run_suite(monkeypatch, *given, 1, "--budget", 0)
    assert "22 are left for another call" in capsys.readouterr().out
    run_suite(monkeypatch, *given, 1, "--rows", "multitask")
    assert len(record.load(file)[2]) == 8
    run_suite(monkeypatch, *given, 1)
    whole = file.read_bytes()
    header, clocks, runs = record.load(file)
    assert header["made_with"]["torch"] == torch.__version__ and "revision" in header["made_with"]
    assert set(clocks["wine_random"]) == set(jobs.timed("wine_random"))
    assert len(runs) == 22 and all(line["at_steps"]["step"] <= 20 for line in runs.values())
    assert runs["wine_random", "primary_only", 0]["equal_seconds"] > 20  # it is cheaper than auto
    run_suite(monkeypatch, *given, 1)
    assert file.read_bytes() == whole
    text = page.page({"development": record.load(file)})
    assert "| wine_random | " in text and "Not measured yet." in text
    file.write_bytes(whole + b'{"pair": "cut o')
    assert record.load(file) == (header, clocks, runs)
    monkeypatch.setenv("ATTITTUD_REVISION", "another")
    with pytest.raises(SystemExit, match="was made with revision"):
        run_suite(monkeypatch, *given, 1)


def lines(given, **scores):
    """Runs of one pair: test accuracies by entry and seed, and scores by entry."""
    found = {}
    for entry, values in given.items():
        for seed, test in enumerate(values):
            check = {"test": test, "validation": 50, "validation_loss": 1}
            for name, score in scores.items():
                check[name] = score.get(entry, check[name])
            found["p", entry, seed] = {"seconds": 1.0, "at_steps": check, "at_seconds": check}
    return found


BASE = {
    "primary_only": [80, 82, 81],
    "multitask 1": [70, 70, 70],
    "multitask 4": [90, 91, 92],
    "pcgrad": [1, 1, 1],
    "cosine_gate": [2, 2, 2],
    "bloop": [3, 3, 3],
    "preset primary_only": [79, 79, 79],
    "preset flip": [60, 60, 60],
    "auto": [81, 83, 82.5],
}


def outcome(given, **scores):
    return table.outcome("p", list(BASE), lines(given, **scores), "at_steps")


def accuracies(found, row):
    return list(found.values[row].values())


def test_other_processes_find_what_they_are_given():
    """After `python -m` they do not import a `__main__.py`."""
    assert not [f.__module__ for f in (main.alone, main.clock, main.train) if f.__module__.endswith("__main__")]


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_an_interrupt_ends_the_runs_of_other_processes_at_once(tmp_path):
    piece = f"import os, time; open(f'{tmp_path}/{{os.getpid()}}', 'w').close(); time.sleep(100)"
    script = f"""
from importlib import import_module
list(import_module("{NAME}.__main__").spread([(exec, ({piece!r},))] * 2, 2))
"""
    root, command = Path(__file__).parents[2], [sys.executable, "-c", script]
    _, err = interrupted(command, lambda: len(list(tmp_path.iterdir())) == 2, root)
    assert len(list(tmp_path.iterdir())) == 2 and err.splitlines()[-1] == "KeyboardInterrupt", err


def test_rows_are_chosen_without_the_test_set():
    found = outcome(BASE, validation={"multitask 1": 60, "preset flip": 60})
    assert accuracies(found, "multitask") == [70, 70, 70] and found.reference == "primary_only"
    assert found.chosen == ["flip"] * 3 and accuracies(found, "best_preset") == [60, 60, 60]
    found = outcome(BASE, validation_loss={"multitask 4": 0.5, "preset flip": 2})
    assert accuracies(found, "multitask") == [90, 91, 92] and found.reference == "multitask"
    assert found.chosen == ["primary_only"] * 3
    assert found.seconds["multitask"] == 2 and found.seconds["best_preset"] == 2 and found.seconds["auto"] == 1


@pytest.mark.parametrize(
    ("auto", "verdict"),
    [
        ([81, 83, 82.5], "gains"),
        ([80, 82, 80.9], "no regret"),
        ([77, 86, 81], "unclear"),
        ([77, 79, 78.5], "**loses**"),
    ],
)
def test_conclusions_of_the_suite(auto, verdict):
    found = outcome(BASE | {"auto": auto}, validation={"multitask 1": 60})
    assert found.verdict == verdict
    goals = table.goals([found, found])
    assert goals[0].met == (verdict in ("gains", "no regret"))
    assert goals[1].met == (verdict == "gains")
    assert goals[3].measured == "2.0"


def test_differences_are_taken_over_the_seeds_that_both_rows_have():
    runs = lines(BASE)
    del runs["p", "multitask 4", 1], runs["p", "preset flip", 0]
    found = table.outcome("p", list(BASE), runs, "at_steps")
    assert found.values["multitask"].keys() == {0, 2} and found.values["best_preset"].keys() == {1, 2}
    assert found.regret.n == 3 and found.regret.mean == pytest.approx(3.5 / 3)  # to primary_only
    assert found.control.n == 2 and found.control.mean == pytest.approx((4 + 3.5) / 2)
    without = {key: line for key, line in runs.items() if key[1] not in ("bloop", "preset flip")}
    found = table.outcome("p", list(BASE), without, "at_steps")
    assert found.regret.n == 3 and not {"bloop", "best_preset"} & found.values.keys()
    assert len(table.goals([found])) == 2
    assert table.outcome("p", list(BASE), {key: runs[key] for key in runs if key[1] != "auto"}, "at_steps") is None


def test_the_page_compares_rows_over_the_seeds_that_all_have():
    runs = lines(BASE)
    del runs["p", "bloop", 2]
    found = table.outcome("p", list(BASE), runs, "at_steps")
    assert page.mean_over([found, found], "auto", [0, 1]) == 82
    header = {"pairs": {"p": {"entries": list(BASE)}}}
    text = page.tables({"held_out": (header, {}, runs)}, "held_out", "at_steps")
    assert "| mean, the 2 seeds of all rows | 81.0 | 70.0 | 1.0 | 2.0 | 3.0 | 79.0 | 82.0 |" in text
    text = page.tables({"held_out": (header, {}, lines(BASE))}, "held_out", "at_steps")
    assert "seeds of all rows" not in text


def test_seconds_at_equal_seconds_come_from_the_runs():
    def run(seconds, steps, equal_seconds):
        return {"seconds": seconds, "steps": steps, "equal_seconds": equal_seconds}

    runs = {
        ("p", "auto", 0): run(4.0, 100, 100),
        ("p", "multitask 1", 0): run(1.0, 100, 200),
        ("p", "multitask 4", 0): run(3.0, 100, 200),
        ("other", "multitask 1", 0): run(99.0, 100, 200),
    }
    assert page.time_spent("p", ["multitask 1", "multitask 4"], runs) == 1.0
    assert page.time_spent("p", ["bloop"], runs) is None
