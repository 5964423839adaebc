"""A trial: averaged weights, and kills from which it goes on as if it had never stopped."""

from pathlib import Path

import pytest
import torch

from attittud_lab.config.schema import CandidateConfig
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.portfolio import trial as module
from attittud_lab.portfolio.candidates import config_for, data_for, named
from attittud_lab.portfolio.folds import fold_data, make_folds
from attittud_lab.portfolio.trial import TrialJob, TrialResult, look_file, look_steps, run_trial
from attittud_lab.training.averaging import AveragedWeights
from attittud_lab.training.phase import Phase
from attittud_lab.training.phases import begin_phase
from attittud_lab.training.train import build_model, load_data
from tests.helpers.portfolios import job

CPU = torch.device("cpu")


def a_job(
    folder: Path, until: int, *changes: str, name: str = "multitask", fold: int | None = 1
) -> TrialJob:
    config = job(*changes)
    return TrialJob(
        config, named(CandidateConfig(name=name), config), fold, until, folder, keeps=True
    )


def test_averaged_weights_equal_those_of_an_explicit_loop():
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
    """Outputs for the held-out fold at each look, from a plain loop over the steps."""
    data = load_data(trial.config, pooled=True)
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
                    with phase.average.in_use(), torch.no_grad():
                        found.append(model.eval()(own.validation.inputs, head="primary"))
                    model.train()
            model.load_state_dict(phase.average.values)
    return found


def killed_often(monkeypatch: pytest.MonkeyPatch, trial: TrialJob) -> TrialResult:
    """Run a trial that is killed again and again, each time after two checkpoints."""
    monkeypatch.setattr(module, "SAVED_EVERY", 0.0)
    save = module.save_checkpoint
    for tries in range(1, 40):
        saves = 0

        def killed(path: Path, state: object) -> None:
            nonlocal saves
            saves += 1
            if saves > 2:
                raise KeyboardInterrupt
            save(path, state)

        with monkeypatch.context() as patched:
            patched.setattr(module, "save_checkpoint", killed)
            try:
                result = run_trial(trial)
            except KeyboardInterrupt:
                continue
        assert tries > 3
        return result
    raise AssertionError("the trial makes no progress")


@pytest.mark.parametrize(("name", "fold"), [("multitask", 1), ("auto", 0)])
def test_a_killed_trial_gives_the_same_outputs(tmp_path, monkeypatch, name, fold):
    whole = run_trial(a_job(tmp_path / "whole", 36, name=name, fold=fold))
    assert whole.steps == 36
    assert len(whole.outputs) == 6
    killed = killed_often(monkeypatch, a_job(tmp_path / "killed", 36, name=name, fold=fold))
    for one, other in zip(whole.outputs, killed.outputs, strict=True):
        assert torch.equal(one, other)
    for look in range(6):
        files = [look_file(tmp_path / folder, look) for folder in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()
    if name == "multitask":
        for one, other in zip(whole.outputs, explicit(a_job(tmp_path, 36)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


PICTURES = ("model.name=small-cnn", "training.channels_last=true")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["multitask", "drop_harmful"])
def test_a_captured_trial_that_is_killed_gives_the_same_outputs_on_a_gpu(
    tmp_path, monkeypatch, name
):
    changes = (*PICTURES, "device=cuda", "training.deterministic=true")
    whole = run_trial(a_job(tmp_path / "whole", 36, *changes, name=name))
    killed = killed_often(monkeypatch, a_job(tmp_path / "killed", 36, *changes, name=name))
    for one, other in zip(whole.outputs, killed.outputs, strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_trial_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAVED_EVERY", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(Phase, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_trial(a_job(tmp_path, 36))
    with pytest.raises(InputError, match="the checkpoint does not fit"):
        run_trial(a_job(tmp_path, 36, "model.width=8"))


def interrupt(_: object) -> None:
    raise KeyboardInterrupt
