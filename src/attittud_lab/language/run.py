"""`task: causal-lm`: a language model learns new data with Hugging Face's Trainer, and its run folder says what it forgot.

The Trainer makes steps and checkpoints and resumes runs; `attittud.integrations.guard` protects the model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.source import warn_once
from attittud_lab.errors import InputError, optional
from attittud_lab.files import write_atomically, write_json
from attittud_lab.language.conversations import (
    Example,
    Row,
    TextEncoder,
    checksum,
    hold_out,
    read,
    warn_of_common,
    without,
)
from attittud_lab.models import find
from attittud_lab.models.huggingface import hf_language, quietly
from attittud_lab.output.logs import Log, check_log, open_log
from attittud_lab.output.progress import Progress
from attittud_lab.runs.folder import RunFolder, trained_once
from attittud_lab.runs.result import PhaseSummary, RunResult
from attittud_lab.training.devices import choose_device, enough_memory

LEARNED = "learned.json"
MODEL = "model"
REPLIES = "replies.jsonl"
PHASE = "learn"
FEW = 10  # with fewer held-out protected examples the decision says that they are few
_LESS = "lower language.batch_size or max_length, raise accumulate, or set gradient_checkpointing: true or lora: 16"
_METRICS = {
    "loss": "loss/training",
    "loss_new": "loss/new",
    "loss_protected": "loss/protected",
    "eval_loss": "validation/loss",
    "eval_forgetting": "validation/forgetting",
    "learning_rate": "lr",
    "grad_norm": "gradient_norm",
}
"""Names in metrics.jsonl for names in the Trainer's log. Its `loss` is the loss of the new data, whatever the guard."""


def run_dir_of(config: Config, name: str) -> Path:
    """The folder of a run: output/NAME/GUARD/seed-SEED."""
    return Path(config.output) / name / config.language.guard / f"seed-{config.seed}"


def run(
    config: Config, run_dir: Path, *, progress: Progress | None = None, logs: Sequence[str] = (), fresh: bool = False
) -> RunResult:
    """Train and write the run folder; a finished run is not trained again, an unfinished one continues."""
    for name in logs:
        check_log(name)
    optional("transformers", "transformers", "task: causal-lm")
    optional("accelerate", "transformers", "task: causal-lm")
    if config.language.lora is not None:
        try:
            optional("peft", "", "language.lora")
        except InputError:
            cure = "run: pip install peft, or train all weights with lora: null"
            raise InputError(f"language.lora: needs the package 'peft', which is not installed; {cure}") from None

    def train(folder: RunFolder) -> RunResult:
        device = _device(config.device)
        usual = torch.get_num_threads()
        torch.set_num_threads(folder.threads(usual) or usual)
        try:
            with enough_memory(device, _LESS), _own_random_state(device), quietly(), ExitStack() as opened:
                job = _Job(config, folder, device, progress or Progress())
                job.logs = [opened.enter_context(closing(open_log(name, run_dir, to_dict(config)))) for name in logs]
                return job.run()
        finally:
            torch.set_num_threads(usual)

    return trained_once(run_dir, config, train, fresh=fresh)


def _device(name: str) -> torch.device:
    device = choose_device(name)
    if device.type not in ("cpu", "cuda") or device.index:
        cure = "use device=cpu, or device=cuda with CUDA_VISIBLE_DEVICES set to one GPU"
        raise InputError(f"device: task: causal-lm runs on the CPU or the first GPU, not on {name}; {cure}")
    return device


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


class _Job:
    """One run: data, model, trainer, and what is written."""

    def __init__(self, config: Config, folder: RunFolder, device: torch.device, progress: Progress) -> None:
        self.config, self.folder, self.device, self.progress = config, folder, device, progress
        self.logs: Sequence[Log] = ()
        torch.manual_seed(config.seed)
        _, (name,) = find(config.model.name)
        self.model, self.tokenizer = hf_language(name)
        self.encoder = TextEncoder(self.tokenizer, self._longest(), chat=config.language.chat)
        self.rows: dict[str, list[Row]] = {}
        self._read()
        measured = [row for part in ("validation", "protected_validation") for row in self.rows.get(part, ())]
        for part, where in (("train", "language.learn"), ("protected", "language.protect")):
            if part in self.rows:
                self.rows[part] = without(self.rows[part], measured, where)
        warn_of_common(self.rows["train"], self.rows.get("protected", ()))
        self._check_model()
        if config.language.lora is not None:
            self.model = _with_lora(self.model, config.language.lora)

    def _longest(self) -> int:
        from attittud.integrations.protected import context_length

        wanted, most = self.config.language.max_length, context_length(self.model)
        if most is not None and wanted > most:
            raise InputError(f"language.max_length: the model reads {most} tokens at most, got {wanted}; lower it")
        return wanted

    def _read(self) -> None:
        wanted, seed = self.config.language, self.config.seed
        assert wanted.learn is not None
        new, held_out = hold_out(read(wanted.learn, "language.learn", seed), wanted.validation, "language.validation")
        self.rows |= {"train": self.encoder.rows(new, "language.learn")}
        self.rows |= {"validation": self.encoder.rows(held_out, "language.learn")}
        where, source = "language.protect", wanted.protect
        if wanted.protect_prompts is not None:
            where, source = "language.protect_prompts", wanted.protect_prompts
        if source is None:
            return
        examples = read(source, where, seed, prompts=wanted.protect is None)
        if wanted.protect is None:
            examples = self._answerable(examples, where)
            if not self.folder.about_path.exists():  # a run that never began may have had another model
                (self.folder.path / REPLIES).unlink(missing_ok=True)
        # The model's replies to equal prompts are equal too.
        old, kept = hold_out(examples, wanted.protect_validation, "language.protect_validation")
        for part, some in (("protected", old), ("protected_validation", kept)):
            self.rows[part] = (
                self.encoder.rows(some, where) if wanted.protect is not None else self._replies(some, part)
            )

    def _answerable(self, examples: Sequence[Example], where: str) -> list[Example]:
        found = [example for example in examples if self.encoder.room(example) > 0]
        many = f"{where}: {len(examples) - len(found)} of {len(examples)} prompts"
        full = f"{many} leave no room for a reply within language.max_length {self.encoder.longest}"
        if not found:
            raise InputError(f"{full}; raise it")
        if len(found) < len(examples):
            warn_once(f"{full}; raise it to use them")
        return found

    def _replies(self, examples: Sequence[Example], part: str) -> list[Row]:
        """Return what the model writes before it is trained; the folder keeps it for a continued run."""
        from attittud.integrations.protected import replies

        path = self.folder.path / REPLIES
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
        known = [line for line in lines if line["part"] == part]
        prompts = [self.encoder.prompt(example) for example in examples]
        if [line["prompt"] for line in known] != prompts:
            self.model.to(self.device)
            most = self.config.language.reply_tokens
            written = replies(self.model, self.tokenizer, prompts, most, self.encoder.longest)
            known = [
                {"part": part, "prompt": prompt, "reply": self._reply(row), **row}
                for prompt, row in zip(prompts, written, strict=True)
            ]
            lines = [line for line in lines if line["part"] != part] + known
            write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        return [{name: line[name] for name in ("input_ids", "labels")} for line in known]

    def _reply(self, row: Row) -> str:
        said = [token for token in row["labels"] if token >= 0]
        return str(self.tokenizer.decode(said, skip_special_tokens=True))

    def _check_model(self) -> None:
        largest = max(max(row["input_ids"]) for rows in self.rows.values() for row in rows)
        known = int(self.model.get_input_embeddings().num_embeddings)
        if largest >= known:
            raise InputError(
                f"model: its tokenizer has the token {largest}, but its network knows only {known}; give a folder whose "
                "tokenizer and weights belong together"
            )
        if not _is_causal(self.model, known):
            raise InputError(
                "model: it sees the tokens that it has to predict, as encoders such as BERT do; give a causal language model"
            )

    def run(self) -> RunResult:
        from attittud_lab.language.learner import Advancing, last_checkpoint, make_trainer

        folder, wanted = self.folder, self.config.language
        record = {name: {"rows": len(rows), "sha256": checksum(rows)} for name, rows in self.rows.items()}
        folder.begin({"kind": "language", "chat": self.encoder.chat} | record, self.device, torch.get_num_threads())
        state, checkpoint = last_checkpoint(folder.checkpoints_path)
        folder.truncate(0)
        for entry in state.get("log_history", ()):  # steps that will not be done again
            self.record(entry, shown=False)
        trainer = make_trainer(
            self.config, self.model, self.tokenizer, self.rows, self.device, folder.checkpoints_path, self.record, state
        )
        self.progress.phase(PHASE, trainer.args.max_steps, int(state.get("global_step", 0)))
        trainer.add_callback(Advancing(self.progress))
        trainer.train(resume_from_checkpoint=checkpoint)
        learned = self._learned(trainer)
        write_json(folder.path / LEARNED, learned)
        shutil.rmtree(folder.path / MODEL, ignore_errors=True)
        trainer.save_model(str(folder.path / MODEL))
        (folder.path / MODEL / "training_args.bin").unlink(missing_ok=True)  # a pickle, which nobody needs
        steps = trainer.state.global_step
        phase = PhaseSummary(name=PHASE, steps=steps, best_step=steps, seconds=trainer.seconds(), stopped=None)
        return RunResult(
            strategy=wanted.guard,
            seed=self.config.seed,
            metric="forgetting" if "forgetting" in learned["end"] else "loss",
            validation=learned["end"],
            test={},
            phases=[phase],
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            examples={name: len(rows) for name, rows in self.rows.items()},
            run_dir=folder.path,
        )

    def _learned(self, trainer: Any) -> dict[str, Any]:
        curve = [
            {"share": share, "loss": found["eval_loss"], "forgetting": found["forgetting"]}
            for share, found in trainer.averages.items()
        ]
        lines = [as_metrics(entry) for entry in trainer.state.log_history]
        measured = [line for line in lines if "validation/loss" in line]
        start, end = (
            {name.removeprefix("validation/"): x for name, x in line.items() if name.startswith("validation/")}
            for line in (measured[0], measured[-1])
        )
        found: dict[str, Any] = {"guard": self.config.language.guard, "start": start, "end": end, "averages": curve}
        held_out = {name: len(self.rows.get(name, ())) for name in ("validation", "protected_validation")}
        return found | {"decision": decide(found, self.config.language.tolerated, held_out)}

    def record(self, entry: Mapping[str, Any], *, shown: bool = True) -> None:
        """Write an entry of the Trainer's log to the file, the bar and the dashboards."""
        values = as_metrics(entry)
        if not values:
            return
        self.folder.record({"phase": PHASE, **values})
        figures = {name.removeprefix("validation/"): x for name, x in values.items() if name.startswith("validation/")}
        if figures and shown:
            self.progress.evaluated(figures)
        for log in self.logs if shown else ():
            named = {f"attittud/{n.removeprefix('attittud/')}": x for n, x in values.items() if n != "step"}
            log.log(named, values["step"])


@torch.no_grad()
def _is_causal(model: Any, tokens: int) -> bool:
    """Whether predictions stay the same when a later token changes."""
    model.eval()
    row = torch.arange(4, device=model.device) % tokens
    other = torch.cat([row[:3], (row[3:] + 1) % tokens])
    seen, changed = (model(input_ids=ids[None]).logits[0, :3] for ids in (row, other))
    return not bool((seen - changed).abs().max() > 1e-5 * seen.abs().max())  # more than rounding; not about NaN


def _with_lora(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, settings)


def as_metrics(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the Trainer's log as a line of metrics; empty for its summary at the end."""
    found = {
        _METRICS.get(name, name): x
        for name, x in sorted(entry.items())  # as in the log of a continued run
        if name in _METRICS or name.startswith("attittud/")
    }
    return {"step": entry["step"], "seconds": entry["seconds"], **found} if found else {}


def _examples(count: int) -> str:
    return f"{count} held-out example{'s' * (count != 1)}"


def decide(found: Mapping[str, Any], tolerated: float, held_out: Mapping[str, int]) -> dict[str, str]:
    """Decide whether the trained weights are worth using; averages of weights are the free alternative.

    `held_out` are the numbers of examples that measured the new and the protected data.
    """
    start, end = found["start"], found["end"]
    new, old = (held_out[name] for name in ("validation", "protected_validation"))
    learned = (
        f"Loss on {_examples(new)} of new data: {start['loss']:.3f} before, {end['loss']:.3f} after (nats per token)."
    )
    about = "Decision on one run with one seed"
    if not end["loss"] < start["loss"]:
        return {"outcome": "no_help", "about": about, "text": f"Nothing was learned. {learned}"}
    if "forgetting" not in end:
        text = f"The model learned. {learned} What it forgot is not known, because no data were protected."
        return {"outcome": "unclear", "about": about, "text": text}
    forgot = (
        f"Forgetting on {_examples(old)} of protected data: {end['forgetting']:+.3f}; up to {tolerated:g} is tolerated."
    )
    if old < FEW:
        forgot += f" So few examples prove little: hold out {FEW} or more (language.protect_validation)."
    if end["forgetting"] <= tolerated:
        text = f"Use the trained model: it learned, and its forgetting is tolerable. {learned} {forgot}"
        return {"outcome": "use", "about": about, "text": text}
    within = [one for one in found["averages"] if one["forgetting"] <= tolerated and one["loss"] < start["loss"]]
    best = min(within, key=lambda one: float(one["loss"]), default=None)
    cure = "Try a lower learning rate, fewer steps or another guard."
    if best is not None:
        cure = (
            f"An average of the weights before and after training, in which the trained weights count {best['share']:.0%}, "
            f"forgets little enough: loss {best['loss']:.3f}, forgetting {best['forgetting']:+.3f}."
        )
    return {
        "outcome": "unclear",
        "about": about,
        "text": f"The model learned, but forgot too much. {learned} {forgot} {cure}",
    }
