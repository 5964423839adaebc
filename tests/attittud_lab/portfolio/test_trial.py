"""A trial: averaged weights, and stops at any step from which it goes on as if it had never
stopped.
"""

from pathlib import Path

import pytest
import torch

from attittud_lab.config.schema import CandidateConfig
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.models.network import load_weights
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio import trial as module
from attittud_lab.portfolio.candidates import config_for, data_for, named
from attittud_lab.portfolio.folds import fold_data, make_folds
from attittud_lab.portfolio.trial import (
    TrialJob,
    look_file,
    look_steps,
    pooled_data,
    run_trial,
)
from attittud_lab.training.phase import AveragedWeights, DivergedError, Phase
from attittud_lab.training.train import begin_phase, build_model
from tests.helpers.portfolios import job

CPU = torch.device("cpu")


def a_job(
    folder: Path, until: int, *changes: str, name: str = "multitask", fold: int | None = 1
) -> TrialJob:
    config = job(*changes)
    return TrialJob(
        config, named(CandidateConfig(name=name), config), fold, until, folder, keeps=True
    )


def test_averaged_weights_equal_those_of_an_explicit_loop() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    window, seen = 7.5, list[dict[str, torch.Tensor]]()
    average = AveragedWeights(model, window, CPU)
    for step in range(25):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(8, 3) * 3)  # changes BatchNorm's statistics
        seen.append({name: tensor.double().clone() for name, tensor in model.state_dict().items()})
        average.load(step)
        average.update()
        weights = torch.tensor(
            [(1 - 1 / window) ** (step - i) for i in range(step + 1)], dtype=torch.float64
        )
        for name, mean in average.values.items():
            values = torch.stack([found[name] for found in seen])
            shape = (-1, *([1] * (values.ndim - 1)))
            wanted = (
                (values * weights.view(shape)).sum(0) / weights.sum()
                if mean.is_floating_point()
                else values[-1]
            )
            torch.testing.assert_close(mean.double(), wanted, rtol=1e-5, atol=1e-5)
    assert int(average.values["1.num_batches_tracked"]) == 25
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.in_use():
        assert torch.equal(model.state_dict()["0.weight"], average.values["0.weight"])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def explicit(trial: TrialJob) -> list[torch.Tensor]:
    """Outputs for the held-out fold at each look, from a plain loop over the steps of both
    phases.
    """
    data = pooled_data(trial.config)
    folds = make_folds(data, trial.config.portfolio, mix(trial.config.seed, "folds"))
    own = data_for(trial.candidate, fold_data(data, folds, trial.fold))
    config = config_for(
        trial.candidate, trial.config, mix(trial.config.seed, "fold", trial.fold or 0)
    )
    model = build_model(config.model, own, config.seed).train()
    found, done = [], 0
    with torch.random.fork_rng():
        for name in ("guided", "finetune"):
            phase = Phase(name, config, own, model, CPU, "accuracy", window=3.6)
            begin_phase(phase)
            for _ in range(phase.steps):
                phase.step()
                done += 1
                if done in look_steps(config):
                    assert phase.average is not None
                    with phase.average.in_use(), torch.no_grad():
                        found.append(model.eval()(own.validation.inputs, head="primary"))
                    model.train()
            model.load_state_dict(phase.average.values)
    return found


@pytest.mark.parametrize("name", ["multitask", "auto"])
def test_a_trial_that_stops_and_continues_gives_the_same_outputs(tmp_path: Path, name: str) -> None:
    whole = run_trial(a_job(tmp_path / "whole", 36, name=name))
    assert whole.steps == 36 and len(whole.outputs) == 6
    for until in (6, 24, 30, 36):  # in the first phase, at its end, in the second one
        part = run_trial(a_job(tmp_path / "parts", until, name=name))
        assert part.steps == until
    for one, other in zip(whole.outputs, part.outputs, strict=True):
        assert torch.equal(one, other)
    for look in range(6):
        assert (
            look_file(tmp_path / "whole", look).read_bytes()
            == look_file(tmp_path / "parts", look).read_bytes()
        )
    assert not (tmp_path / "parts" / "checkpoint.safetensors").exists()
    again = run_trial(a_job(tmp_path / "parts", 24, name=name))  # what was known at an earlier rung
    assert len(again.outputs) == 4 and torch.equal(again.outputs[-1], whole.outputs[3])
    if name == "multitask":
        for one, other in zip(whole.outputs, explicit(a_job(tmp_path, 36)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


PICTURES = ("model.name=small-cnn", "training.channels_last=true")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings(
    "ignore:.*AccumulateGrad.*", "ignore:.*TensorFloat32.*", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("name", ["multitask", "drop_harmful"])
def test_a_captured_trial_that_stops_and_continues_gives_the_same_outputs_on_a_gpu(
    tmp_path: Path, name: str
) -> None:
    changes = (*PICTURES, "device=cuda", "training.deterministic=true")
    whole = run_trial(a_job(tmp_path / "whole", 36, *changes, name=name))
    for until in (12, 24, 30, 36):
        part = run_trial(a_job(tmp_path / "parts", until, *changes, name=name))
    for one, other in zip(whole.outputs, part.outputs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fold", [0])
def test_a_killed_trial_continues(
    tmp_path: Path, fold: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_trial(a_job(tmp_path / "whole", 30, fold=fold))
    monkeypatch.setattr(module, "SAVED_EVERY", 0.0)
    save = module.save_checkpoint
    for kill_at in range(1, 40):
        saves = 0

        def killed(path: Path, state: object) -> None:
            nonlocal saves
            saves += 1
            if saves > 2:  # after two checkpoints
                raise KeyboardInterrupt
            save(path, state)

        monkeypatch.setattr(module, "save_checkpoint", killed)
        try:
            found = run_trial(a_job(tmp_path / "killed", 30, fold=fold))
            break
        except KeyboardInterrupt:
            assert kill_at < 39
    assert kill_at > 3 and [
        torch.equal(a, b) for a, b in zip(found.outputs, whole.outputs, strict=True)
    ] == [True] * len(whole.outputs)
    if fold is None:
        weights = [
            (tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "killed")
        ]
        assert weights[0] == weights[1] and not whole.outputs
        for lines in (found.lines, whole.lines):
            for line in lines:
                del line["seconds"]
        assert found.lines == whole.lines and {line["phase"] for line in found.lines} == {
            "guided",
            "finetune",
        }


def test_a_trial_on_all_labels_ends_with_averaged_weights(tmp_path: Path) -> None:
    run_trial(a_job(tmp_path / "early", 12, fold=None))
    run_trial(a_job(tmp_path / "plain", 12, "portfolio.averaging=0", fold=None))
    one, other = (
        load_weights(tmp_path / name / "weights.safetensors") for name in ("early", "plain")
    )
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert {name.split(".")[1] for name in one if name.startswith("heads.")} == {"primary", "more"}


def test_a_trial_that_diverges_says_so(tmp_path: Path) -> None:
    found = run_trial(a_job(tmp_path, 36, "training.guided.lr=1e30", "training.guided.clip=null"))
    assert found.diverged is not None and "training diverged" in found.diverged
    assert (
        run_trial(a_job(tmp_path, 36, "training.guided.lr=1e30", "training.guided.clip=null"))
        == found
    )


def test_a_checkpoint_of_another_trial_is_refused(tmp_path: Path) -> None:
    run_trial(a_job(tmp_path, 6))
    (tmp_path / "result.safetensors").unlink()
    with pytest.raises(InputError, match="the checkpoint does not fit this trial"):
        run_trial(a_job(tmp_path, 6, "model.width=8"))


def test_a_trial_that_diverges_later_keeps_its_earlier_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A portfolio that goes on after a kill reads its rungs again: the same candidates must be
    alive in each of them.
    """
    before = run_trial(a_job(tmp_path, 12))
    step = Phase.step

    def diverging(self: Phase) -> object:
        if self.state.step >= 12:
            raise DivergedError("training diverged")
        return step(self)

    monkeypatch.setattr(Phase, "step", diverging)
    assert run_trial(a_job(tmp_path, 24)).diverged and run_trial(a_job(tmp_path, 36)).diverged
    again = run_trial(a_job(tmp_path, 12))
    assert again.diverged is None and len(again.outputs) == len(before.outputs) == 2
    assert all(
        torch.equal(one, other) for one, other in zip(before.outputs, again.outputs, strict=True)
    )


def test_all_trials_start_from_the_weights_that_were_made_once(tmp_path: Path) -> None:
    run_trial(a_job(tmp_path / "seed-0", 6, fold=None))
    start = f"model.weights={tmp_path}/seed-{{seed}}/weights.safetensors"
    data, found = pooled_data(job()), []
    for fold in (0, 1, None):
        made = module._Trial(
            a_job(tmp_path / f"trial-{fold}", 6, start, fold=fold), data, CPU, Progress()
        )
        found.append(
            {
                name: tensor
                for name, tensor in made.model.state_dict().items()
                if name.startswith("body")
            }
        )
    kept = load_weights(tmp_path / "seed-0" / "weights.safetensors")
    for body in found:
        assert body and all(torch.equal(tensor, kept[name]) for name, tensor in body.items())
