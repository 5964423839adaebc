"""What `attittud diagnose` measures against explicit computations, its alarms in planted cases, and the command."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import binomtest
from torch import Tensor, nn

from attittud import Eta, Guide, decompose
from attittud_lab.cli import main
from attittud_lab.commands.diagnose import show
from attittud_lab.config.load import loads
from attittud_lab.diagnose import Probe, batch_sizes, diagnose, make_probe, summarise_steps
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model
from attittud_lab.statistics import batch_means, sign_test, summarise
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data

JOB = """
data:
  primary: {path: digits, train: 100, validation: 60, test: 200}
  auxiliary:
    more: {path: digits, examples: 300, share_head: true}
    other: {path: digits, examples: 200}
model: {name: small-cnn, width: 4, dropout: 0.2}
training: {guided: {steps: 60, primary_batch: 16, batch_size: 16}}
strategy: {rank: 4, refresh_every: 5}
"""


# ------------------------------------------------------------------------------------------------------ the probe


class Linear:
    """Losses that are linear in w: the gradient of primary example i is row i, those of the sources are fixed."""

    def __init__(self, primary: Tensor, **sources: Tensor) -> None:
        self.rows, self.sources, self.calls = primary, sources, []
        self.model = nn.ParameterDict({"a": torch.zeros(2, 3), "b": torch.zeros(primary.shape[1] - 6)}).double()

    def flat(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.model.values()])

    def primary(self, rows: Tensor) -> Tensor:
        self.calls.append(set(rows.tolist()))
        return self.rows[rows] @ self.flat()

    def auxiliary(self) -> dict[str, Tensor]:
        return {name: gradient @ self.flat() for name, gradient in self.sources.items()}

    def probe(self, *, basis_batch: int = 8, primary_batch: int = 8, **guide: object) -> Probe:
        rank = {} if guide.get("basis") == "mean" else {"rank": 4}
        settings = {"eta": Eta(1, 1, 1), "engine": "loop", "refresh_every": 5, **rank, **guide}
        sizes = {"basis_batch": basis_batch, "primary_batch": primary_batch}
        chosen = Guide(self.model, **settings)
        return Probe(chosen, self.primary, self.auxiliary, examples=len(self.rows), seed=3, **sizes)

    def alarms(self, steps: int = 200, **settings: object) -> list[bool]:
        probe = self.probe(**settings)
        found = summarise_steps([probe.measure(step) for step in range(steps)], probe)
        return [alarm["fired"] for alarm in found["alarms"]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("basis", ["sketch", "mean", "canonical"])
@pytest.mark.parametrize("include_mean", [False, True])
def test_figures_of_a_step(basis: str, include_mean: bool) -> None:
    include_mean = include_mean and basis != "canonical"
    job = Linear(normal(40, 30) + 0.3, one=normal(30), two=normal(30))
    probe = job.probe(basis=basis, include_mean=include_mean)
    for step in range(7):
        found = probe.measure(step)
    assert all(parameter.grad is None for parameter in job.model.parameters())
    saved = probe.guide.state_dict()["basis"]
    rows = torch.eye(30, dtype=torch.float64) if saved is None else saved
    halves = probe.halves(6)
    g1, g2 = (job.rows[half].mean(0) for half in halves)
    fresh = (g1 + g2) / 2
    assert float(found.captured_primary) == pytest.approx(float((rows @ fresh).norm() ** 2 / fresh.norm() ** 2))
    assert int(found.agreeing) == int(((rows @ g1) * (rows @ g2) > 0).sum()) and int(found.compared) == len(rows)
    for name, gradient in job.sources.items():
        parts = decompose(gradient, fresh, rows, include_mean=include_mean)
        wanted = [
            [float(getattr(parts, part)[piece].square().sum()) for part in ("helpful", "harmful", "neutral")]
            for piece in (slice(0, 6), slice(6, 30))
        ]
        assert found.gradients[name].tolist() == pytest.approx(
            [float(g.square().sum()) for g in gradient.split([6, 24])]
        )
        assert found.squares[name].tolist() == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-12)
        opposed = ((rows @ gradient) * (rows @ fresh) < 0).double().mean()
        assert float(found.opposed[name]) == pytest.approx(float(opposed))
    assert probe.groups == ["a", "b"]


def test_the_basis_never_sees_what_it_is_judged_by() -> None:
    job = Linear(normal(30, 20), one=normal(20))
    probe = job.probe(basis_batch=12, primary_batch=10)
    for step in range(10):
        refreshed, job.calls[:] = step % 5 == 0, []
        probe.measure(step)
        if refreshed:
            (basis,) = (rows for rows in job.calls if len(rows) == 12)
            job.calls.remove(basis)
        assert {len(rows) for rows in job.calls} == {5} and not any(rows & basis for rows in job.calls)


def test_batches_are_made_smaller_where_examples_are_few() -> None:
    assert batch_sizes(100, 32, 32) == (32, 32) and batch_sizes(100, 32, 31) == (32, 30)
    assert batch_sizes(40, 32, 32) == (20, 20) and batch_sizes(4, 32, 32) == (2, 2) and batch_sizes(9, 2, 1) == (2, 2)
    with pytest.raises(InputError, match=r"data\.primary\.train"):
        batch_sizes(3, 2, 2)


# ------------------------------------------------------------------------------------------------------ the alarms


def test_auxiliary_alarm() -> None:
    """Auxiliary gradients like primary ones, and ones where no primary gradient ever is."""
    primary = torch.cat([normal(60, 10) + 1, torch.zeros(60, 30, dtype=torch.float64)], 1)
    inside, outside = primary[:20].mean(0), torch.cat([torch.zeros(10), torch.ones(30)]).double()
    assert Linear(primary, like=inside).alarms(40) == [False, False, False]
    assert Linear(primary, like=inside, unlike=outside).alarms(40) == [False, True, False]


def test_primary_alarm() -> None:
    """A random span of rank 4 holds 1 % of 400 dimensions; one of the examples themselves holds their common part."""
    job = Linear(normal(60, 400) + 0.5, one=normal(400))
    assert job.alarms(20, basis="random")[0] and not job.alarms(20)[0]


def test_sign_alarm() -> None:
    """Half-batches of two examples from two classes, whose labels are right or coins."""
    clean, coins = (torch.randint(2, (1000, 1)).double() * 2 - 1 for _ in range(2))
    inputs = clean * 0.7 + normal(1000, 20)
    settings = {"basis_batch": 16, "primary_batch": 4, "steps": 200}
    assert Linear(inputs * coins, one=normal(20)).alarms(**settings)[2]
    assert not Linear(inputs * clean, one=normal(20)).alarms(**settings)[2]


def test_chance_allows_for_small_sets() -> None:
    """Labels are coins, yet half-batches of 16 of the same 68 examples agree in more than half of the directions."""
    shares, fired = [], []
    for _ in range(8):
        job = Linear(normal(100, 30), one=normal(30))
        probe = job.probe(basis_batch=32, primary_batch=32, refresh_every=1, rank=5)
        found = summarise_steps([probe.measure(step) for step in range(40)], probe)
        shares.append(found["half_batches"]["all"]["share"])
        fired.append(found["alarms"][2]["fired"])
    assert probe.chance == pytest.approx(0.5 + np.arcsin(16 / 68) / np.pi)
    found = summarise(shares)
    assert found.low < probe.chance < found.high and found.low > 0.53
    assert sum(fired) >= 6


def test_sign_test() -> None:
    exact = binomtest(61, 100, 0.52, alternative="greater").pvalue
    assert sign_test([61], [100], chance=0.52).p == pytest.approx(exact)
    assert sign_test([16, 15, 15, 15], [25] * 4, chance=0.52).p == pytest.approx(exact)  # they scatter less than coins
    assert sign_test([10] * 5, [10] * 5).p == pytest.approx(0.5**50) and sign_test([0], [4]).p == 1
    assert sign_test([], []).p == 1
    # Ten signs that always turn together are worth one.
    draws = np.random.default_rng(0).integers(2, size=(400, 20)) * 10
    found = [sign_test(row.tolist(), [10] * 20) for row in draws]
    assert np.median([test.effective_n for test in found]) == pytest.approx(20, rel=0.1)
    assert np.mean([test.p < 0.05 for test in found]) < 0.09
    naive = [binomtest(int(row.sum()), 200, alternative="greater").pvalue < 0.05 for row in draws]
    assert np.mean(naive) > 0.2


def test_intervals_allow_for_neighbours_being_alike() -> None:
    random = np.random.default_rng(0)
    covered, naive = [], []
    for _ in range(300):
        values = [0.0]
        for step in random.normal(size=220):
            values.append(0.6 * values[-1] + step)
        series = values[21:]
        found, plain = batch_means(series, 10), summarise(series)
        assert found.mean == pytest.approx(plain.mean) and found.n == 20
        covered.append(found.low < 0 < found.high)
        naive.append(plain.low < 0 < plain.high)
    assert np.mean(covered) > 0.88 > 0.75 > np.mean(naive)
    assert batch_means(range(7), 5).n == 2


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


@pytest.mark.usefixtures("here")
def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", "job.yaml", "seed=1") == 0
    out, err = capsys.readouterr()
    result = json.loads(Path("runs/job/diagnose/diagnose.json").read_text())
    lines = out.splitlines()
    assert err == "" and "\x1b" not in out and lines[-1] == result["verdict"]
    assert "60 steps of 200 asked for" in lines[0] and "early half" in out and "late half" in out
    assert "No figure here has been validated" in out and result["config"]["seed"] == 1
    assert result["made_with"]["torch"] and result["steps"] == 60 and result["block"] == 5
    assert list(result["sources"]) == ["more", "other"]
    for source in result["sources"].values():
        for period in ("all", "early", "late"):
            parts = {name: source[name][period] for name in ("captured", "helpful", "harmful", "neutral")}
            assert parts["helpful"]["mean"] + parts["harmful"]["mean"] == pytest.approx(parts["captured"]["mean"])
            assert parts["captured"]["mean"] + parts["neutral"]["mean"] == pytest.approx(1)
            assert all(part["low"] <= part["mean"] <= part["high"] for part in parts.values())
        assert sum(layer["weight"]["all"]["mean"] for layer in source["layers"].values()) == pytest.approx(1)
    # The head that one source shares with the primary task is shared by that one alone.
    heads = [source["layers"]["heads.primary"]["weight"]["all"]["mean"] for source in result["sources"].values()]
    assert heads[0] > 0 and heads[1] == 0
    signs = result["half_batches"]
    assert signs["all"]["agreeing"] == signs["early"]["agreeing"] + signs["late"]["agreeing"]
    assert signs["all"]["n"] == 240
    assert "opposed" not in result["verdict"] and "conflict" not in result["verdict"]  # never a reason
    fired = [f"({n}) {alarm['found']}; try: " for n, alarm in enumerate(result["alarms"], 1) if alarm["fired"]]
    assert all(words in lines[-1] for words in fired) and lines[-1].count("; try: ") == len(fired)
    assert result["alarms"][0]["fired"] == (result["captured_primary"]["all"]["mean"] < 0.05)
    # On a terminal
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    show(result, Path("x"), console)
    assert "\x1b" in console.file.getvalue() and "early half" in console.file.getvalue()


IMPLICIT = ("flip, basis: exact, engine: implicit, basis_batch: 8", "flip, basis: implicit, basis_batch: 8")


@pytest.mark.parametrize("strategy", ["drop_harmful", "bloop", "primary_only", *IMPLICIT])
def test_the_model_trains_as_if_nobody_looked(strategy: str) -> None:
    """With dropout and BatchNorm, under a strategy with and strategies without a basis of their own."""
    config = loads(JOB, [f"strategy={{name: {strategy}, rank: 4, refresh_every: 5}}"])
    data = load_data(config)
    weights = []
    for watched in (False, True):
        model = build_model(config.model, data, 0).train()
        phase = Phase("guided", config, data, model, torch.device("cpu"), "accuracy")
        probe = make_probe(config, phase)
        for step in range(12):
            if watched:
                probe.measure(step)
            phase.step()
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert probe.guide.basis.name == ("exact" if strategy in IMPLICIT else "sketch") and probe.guide.rank == 4


def test_primary_data_as_auxiliary_data(tmp_path: Path) -> None:
    """The auxiliary gradient then is as deep in the span as the primary one."""
    config = loads(JOB, ["model={name: mlp, width: 16}"])
    data = load_data(config)
    data = replace(data, auxiliary={"more": replace(data.primary, name="more", shares_head=True)})
    result = diagnose(config, tmp_path, data=data)
    share = result["sources"]["more"]["captured"]["all"]["mean"]
    assert share > 0.1 and share == pytest.approx(result["captured_primary"]["all"]["mean"], rel=0.25)
    assert [alarm["fired"] for alarm in result["alarms"]][:2] == [False, False]


MISTAKES = {
    ("nowhere.yaml",): "cannot read the configuration",
    ("job.yaml", "data.auxiliary={}"): "nothing to diagnose",
    ("job.yaml", "strategy=flipp"): "Did you mean 'flip'?",
    ("job.yaml", "strategy.refresh_every=20"): "give at least 80 by --steps",
    ("job.yaml", "--steps", "3"): "--steps",
    ("job.yaml", "training.guided.lr=1e30", "training.guided.clip=null", "log_every=1"): "diverged",
    ("job.yaml", "output=job.yaml"): "choose another folder by output=FOLDER",
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", *arguments) == 2
    err = capsys.readouterr().err
    assert MISTAKES[arguments] in err and err.count("\n") == 1, err
    assert not list(Path().rglob("diagnose.json"))


@pytest.mark.usefixtures("here")
def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Probe, "measure", interrupted)
    assert call("diagnose", "job.yaml") == 130
    assert capsys.readouterr().err.startswith("attittud: interrupted; a diagnosis keeps nothing before its end")
    assert not list(Path().rglob("diagnose.json"))


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", "--help") == 0
    assert "does not predict" in " ".join(capsys.readouterr().out.split())
