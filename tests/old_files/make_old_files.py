"""Makes the files of this folder, with the interface of revision 878ab49 and no other: do not adapt it to later ones.

    cd CHECKOUT_OF_878ab49 && PYTHONPATH=src python .../make_old_files.py

Later revisions have to read what it wrote; `test_old_files.py` checks that they do. Seeds are fixed, so on the same machine
all of it comes out the same but clock readings, and the step counts of the comparison at equal seconds, which follow from
them. Written by hand are jobs/, configs/*.yaml and the three Python files. Made here:

data/, encoder/   tiny data of every kind, and a text encoder
trained/          finished runs of `attittud train`
killed/           runs that were ended by SIGKILL some steps after a checkpoint
expected/         what these end with when nobody disturbs them; and what some jobs that the test trains again end with
compared.tar.gz   the folder of `attittud compare` (packed: .gitignore has every folder that is called runs)
configs.json      what the loader read from the configurations: the defaults, and what differs from them by path;
                  configs/init_*.yaml are written by `attittud init`
fingerprints.json of the jobs here and of experiments/*.yaml; that of MultiCifar100, whose protocol came later, is of its results
guides/           states of a Guide with model and optimizer; folders of torch.distributed.checkpoint
trainer/, lightning/, accelerate/   checkpoints as the adapters write them
made_with.json    versions
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import loops
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from attittud.integrations.state import save_guide
from attittud.recipes.config import Config, to_dict
from attittud.recipes.loader import load
from attittud.recipes.provenance import provenance
from attittud.recipes.reproduce.fingerprint import fingerprint
from PIL import Image

import attittud
from attittud import checkpoint

HERE = Path(__file__).resolve().parent
ROOT = Path(attittud.__file__).parents[2]
"""The checkout."""
TRAINED = ("digits", "pictures", "texts", "findings", "several")
KILLED = {"killed_auto": 3, "killed_flip": 8, "killed_bloop": 3, "killed_texts": 1}
"""Jobs, and after which of its checkpoints each is killed."""
AGAIN = ("words", "labels", "chexpert")
MADE = (
    *(
        "data",
        "encoder",
        "trained",
        "killed",
        "expected",
        "compared",
        "compared.tar.gz",
        "configs.json",
        "fingerprints.json",
    ),
    *(
        "guides",
        "trainer",
        "lightning",
        "accelerate",
        "made_with.json",
        "configs/init_image.yaml",
        "configs/init_text.yaml",
    ),
)

KILL = """
import os, runpy, signal, sys
count, lines = int(sys.argv[1]), 0
def watch(event, arguments):
    global count, lines
    if event == "os.rename" and str(arguments[1]).endswith("checkpoint.safetensors"):
        count -= 1
    elif event == "open" and count <= 0 and str(arguments[0]).endswith("metrics.jsonl"):
        lines += 1
        if lines == 3:  # two lines follow the checkpoint, the third is not written any more
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.argv[1:] = sys.argv[2:]
runpy.run_module("attittud", run_name="__main__")
"""


def main() -> None:
    os.chdir(HERE)  # all paths in the files are relative to this folder
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes started here; the tests have one thread too
    for name in MADE:
        if Path(name).is_dir():
            shutil.rmtree(name)
        Path(name).unlink(missing_ok=True)
    write_data()
    write_encoder()
    train_all()
    compare()
    write_configs()
    write_fingerprints()
    write_guides()
    write_sharded_guides()
    write_adapters()
    tidy()


def command(*arguments: str, kill_after: int | None = None) -> None:
    """`attittud ARGUMENTS` in a process of its own."""
    start = ["-m", "attittud"] if kill_after is None else ["-c", KILL, str(kill_after)]
    done = subprocess.run([sys.executable, *start, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if kill_after is None else -signal.SIGKILL), done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------- data


def write_data() -> None:
    """Pictures whose class is a direction, reviews whose class is a word, tables, and X-rays in CheXpert's layout."""
    draw = np.random.default_rng(0)
    for place, classes, counts in (
        ("pictures", ("across", "down"), {"train": 8, "validation": 4, "test": 4}),
        ("other_pictures", ("across", "down", "slope"), {"": 5}),
    ):
        for split, count in counts.items():
            for name in classes:
                folder = Path("data", place, split, name)
                folder.mkdir(parents=True)
                for number in range(count):
                    (folder / f"{number}.png").write_bytes(picture(draw, name))
    texts = random.Random(0)
    with Path("data/reviews.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["text", "label"])
        table.writerows([review(texts, number % 2), "bad" if number % 2 else "good"] for number in range(48))
    lines = [{"text": review(texts, number % 2)} for number in range(40)]
    Path("data/plain.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    lines = [{"text": review(texts, n % 2), "tags": [n % 2, int(n % 3 == 0)]} for n in range(40)]
    Path("data/labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_findings(draw)
    write_chexpert(draw)


def picture(draw: np.random.Generator, name: str) -> bytes:
    """8 x 8 pixels, brighter along one direction."""
    down, across = np.mgrid[:8, :8]
    ramp = {"across": across, "down": down, "slope": (across + down) / 2}[name]
    pixels = (24 * ramp + draw.integers(0, 64, (8, 8))).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", optimize=True)
    return file.getvalue()


PLAIN = ("a", "the", "film", "story", "really", "again", "what", "plot", "and", "was", "it", "very", ",", ".")
TELLING = (("good", "great", "lovely", "fine"), ("bad", "poor", "awful", "dull"))


def review(draw: random.Random, kind: int) -> str:
    words = draw.choices(PLAIN, k=draw.randint(3, 14))
    words.insert(draw.randrange(len(words)), draw.choice(TELLING[kind]))
    return " ".join(words)


def write_findings(draw: np.random.Generator) -> None:
    """Two labels, 24 patients with two images of the front each, and one from the side."""
    rows = []
    for number in range(72):
        patient, side = divmod(number, 3)
        labels = [patient % 2, int(patient % 3 == 0)]
        image = {"bytes": picture(draw, "down" if labels[0] else "across"), "path": f"{number}.png"}
        rows.append({"image": image, "labels": labels, "patient": patient, "view": "side" if side == 2 else "front"})
    names = {b"class_names": json.dumps({"labels": ["Edema", "Fracture"]}).encode()}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(names)
    pyarrow.parquet.write_table(table, "data/findings.parquet", compression="zstd")


def write_chexpert(draw: np.random.Generator) -> None:
    findings = ("Edema", "Cardiomegaly", "Fracture")
    for split, patients in (("train", range(1, 15)), ("valid", range(20, 26))):
        lines = [f"Path,Sex,Age,Frontal/Lateral,AP/PA,{','.join(findings)}"]
        for patient in patients:
            place = Path(split, f"patient{patient:05d}", "study1", "view1_frontal.jpg")
            target = Path("data/CheXpert-v1.0-small", place)
            target.parent.mkdir(parents=True)
            pixels = np.asarray(Image.open(io.BytesIO(picture(draw, "down" if patient % 2 else "across"))))
            Image.fromarray(pixels).save(target, "jpeg", quality=90)
            edema = "1.0" if patient % 2 else "0.0"
            cardiomegaly = ("-1.0", "", "0.0")[patient % 3]
            lines.append(f"CheXpert-v1.0-small/{place.as_posix()},Female,60,Frontal,AP,{edema},{cardiomegaly},")
        Path(f"data/CheXpert-v1.0-small/{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_encoder() -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    Path("encoder").mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TELLING[0], *TELLING[1], *PLAIN]
    Path("encoder/vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer("encoder/vocab.txt").save_pretrained("encoder")
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4}
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), max_position_embeddings=24, **sizes))
    model.save_pretrained("encoder")


# ---------------------------------------------------------------------------------------------- runs


def train_all() -> None:
    for name in TRAINED:
        command("train", f"jobs/{name}.yaml")
    for name, checkpoints in KILLED.items():
        command("train", f"jobs/{name}.yaml", "output=whole")
        command("train", f"jobs/{name}.yaml", kill_after=checkpoints)
        folder = run_folder("killed", name)
        assert (folder / "checkpoint.safetensors").exists() and not (folder / "result.json").exists()
        keep("whole", name, "result.json", "weights.safetensors")
        # On the machine where it began it ends with the same bits.
        shutil.copytree("killed", "whole/resumed")
        command("train", f"jobs/{name}.yaml", "output=whole/resumed")
        weights = [run_folder(place, name) / "weights.safetensors" for place in ("whole", "whole/resumed")]
        assert weights[0].read_bytes() == weights[1].read_bytes(), name
        shutil.rmtree("whole")
    shutil.rmtree("killed/tokens")  # the same as in trained/
    for name in AGAIN:
        command("train", f"jobs/{name}.yaml")
        keep("again", name, "result.json", "data.json")
    shutil.rmtree("again")


def run_folder(output: str, name: str) -> Path:
    """The only one of a job."""
    (folder,) = Path(output, name).glob("*/seed-*")
    return folder


def keep(output: str, name: str, *files: str) -> None:
    """The figures at the end, the losses on the way, and some files as they are."""
    folder, target = run_folder(output, name), Path("expected", name)
    target.mkdir(parents=True)
    for file in files:
        shutil.copy(folder / file, target / file)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [[line["phase"], line["step"], line.get("loss/primary", line.get("validation/loss"))] for line in lines]
    text = ",\n".join(json.dumps(point) for point in curve)
    (target / "curve.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


def compare() -> None:
    command("compare", "jobs/comparison.yaml")

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """Without times and users; a page of HTML is large, and its figures are in report.json."""
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
        return None if Path(entry.name).name in (".lock", "report.html") else entry

    with gzip.GzipFile("compared.tar.gz", "wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as archive:
        archive.add("compared", filter=plain)
    shutil.rmtree("compared")


# ---------------------------------------------------------------------------------------------- configurations

CASES: list[tuple[str, list[str]]] = [
    ("configs/empty.yaml", []),
    ("configs/images.yaml", []),
    ("configs/short.yaml", []),
    ("configs/short.yaml", ["data.primary=other/path: with #signs", "data.auxiliary.rest.weight=2", "model.width=3"]),
    ("configs/short.yaml", ["strategy.rank=20", "strategy.eta.harmful=-1", "output='a b'", "data.primary.train=0.1"]),
    ("configs/short.yaml", ["strategy=flip", "strategy.eta={neutral: 0}", "compare.weights=[1, 3e-1]", "data.seed=~"]),
    ("configs/numbers.yaml", []),
    ("configs/texts.yaml", []),
    (
        "configs/texts.yaml",
        ["model.freeze=[]", "data.auxiliary.plain.examples=10", "data.cache=null", "strategy=bloop"],
    ),
    ("configs/tables.yaml", []),
    ("configs/chexpert.yaml", []),
    ("configs/common/middle.yaml", []),
    ("configs/common/middle.yaml", ["data.auxiliary={}", "data.primary.classes=null", "strategy.name=drop_harmful"]),
    ("configs/common/middle.yaml", ["data.primary.classes=[a, 'b, c']", "data.primary.where={view: side}", "seed=12"]),
    ("configs/derived.yaml", []),
    ("configs/derived.yaml", ["data.primary.classes=['0', '1']", "strategy={name: auto, judge_every: 1}"]),
    ("configs/init_image.yaml", []),
    ("configs/init_text.yaml", []),
]


def write_configs() -> None:
    pictures = ["--primary", "data/pictures", "--auxiliary", "data/other_pictures"]
    command("init", "image", *pictures, "-o", "configs/init_image.yaml")
    command(
        "init",
        "text",
        "--primary",
        "data/reviews.csv",
        "--auxiliary",
        "data/plain.jsonl",
        "-o",
        "configs/init_text.yaml",
    )
    loaded = [(file, overrides, load(file, overrides)) for file, overrides in CASES]
    missing = unused([config for _, _, config in loaded], Config)
    assert not missing, f"no configuration says anything but the default of {missing}"
    usual = dict(flat(to_dict(Config())))
    cases = []
    for file, overrides, config in loaded:
        values = dict(flat(to_dict(config)))
        given = {path: value for path, value in values.items() if value != usual[path]}
        cases.append({"file": file, "overrides": overrides, "values": given})
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    text = f'{{\n "defaults": {json.dumps(usual)},\n "cases": [\n  {lines}\n ]\n}}\n'
    Path("configs.json").write_text(text, encoding="utf-8")


NAMES = ("data.auxiliary", "data.primary.where", "compare.space", "strategy.eta")
"""Mappings that are kept whole."""


def flat(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their paths."""
    for name, value in values.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and here not in NAMES:
            yield from flat(value, here)
        else:
            yield here, value


def unused(values: list[Any], kind: Any, path: str = "") -> list[str]:
    """Settings that have their default everywhere."""
    found, usual = [], kind()
    for entry in fields(kind):
        inner = [getattr(value, entry.name) for value in values]
        some = next((value for value in inner if value is not None), None)
        if isinstance(some, dict) and any(is_dataclass(item) for value in inner for item in value.values()):
            items = [item for value in inner for item in value.values()]
            found += unused(items, type(items[0]), f"{path}{entry.name}.*.")
        elif is_dataclass(some):
            found += unused([value for value in inner if value is not None], type(some), f"{path}{entry.name}.")
        elif all(value == getattr(usual, entry.name) for value in inner):
            found.append(path + entry.name)
    return found


INCOMPLETE = {
    "cat-vs-dog": ["compare.weights=[0.3,1]"],
    "table2-multicifar100": ["data.primary.classes=[apple,pear]", "data.auxiliary.others.exclude=[apple,pear]"],
}
"""The settings that configurations in experiments/ need before they can be read."""


def write_fingerprints() -> None:
    """By file; of a configuration that is complete only with overrides, with these behind its name."""
    cases = [(path, INCOMPLETE.get(path.stem, [])) for path in sorted(ROOT.glob("experiments/*.yaml"))]
    found = {
        " ".join([path.relative_to(ROOT).as_posix(), *more]): fingerprint(load(path, more)) for path, more in cases
    }
    jobs = [path.as_posix() for path in sorted(Path("jobs").glob("*.yaml"))]
    found |= {file: fingerprint(load(file)) for file in [*dict(CASES), *jobs]}
    Path("fingerprints.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------- guides


def write_guides() -> None:
    Path("guides").mkdir()
    data = loops.make_data()
    torch.save(data, "guides/data.pt")
    for setting in loops.SETTINGS:
        loop = loops.Loop(setting, data)
        loop.train(0, loops.BEFORE)
        if setting == "sharded":  # of a single process here
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp.save({"guide": checkpoint.entries(loop.guide)}, checkpoint_id="guides/dcp_one")
            torch.save({"weights": weights(loop)}, "guides/dcp_one.pt")
            continue
        saved = copy.deepcopy(loop.save())  # what an optimizer gives is no copy
        if setting == "auto":
            assert max(saved["guide"]["judges"]["records"]["auxiliary"]["weights"]) > 0, "nothing was earned"
        if setting == "without_basis":  # it refreshes at once, which a guide that was never stopped would not do
            loop.guide.load_state_dict(saved["guide"])
        torch.save({**saved, "weights": weights(loop)}, f"guides/{setting}.pt")


def weights(loop: loops.Loop) -> torch.Tensor:
    """The parameters now, after two further steps, and after five, the fourth of which refreshes the basis."""
    rows = [loop.weights()]
    for first, steps in ((loops.BEFORE, 2), (loops.BEFORE + 2, 3)):
        loop.train(first, steps)
        rows.append(loop.weights())
    return torch.stack(rows)


def sharded_worker(number: int, folder: str) -> None:
    """One of two workers with shards of every parameter (FSDP2), each with half of a batch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.chdir(HERE)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    loop = loops.Loop("sharded", loops.make_data(), wrap=lambda model: fully_shard(model, mesh=mesh))
    loop.train(0, loops.BEFORE, at=slice(4 * number, 4 * number + 4))
    whole = torch.cat([parameter.full_tensor().detach().flatten() for parameter in loop.model.parameters()])
    dcp.save({"guide": checkpoint.entries(loop.guide)}, checkpoint_id="guides/dcp_two")
    save_guide(loop.guide, Path("guides/trainer_two"), {"updown": 14}, writes=number == 0)
    if number == 0:
        torch.save({"weights": whole.unsqueeze(0)}, "guides/dcp_two.pt")
    dist.destroy_process_group()


def write_sharded_guides() -> None:
    """Write the guides of two workers, and the steps that one process later makes from them."""
    Path("guides/trainer_two").mkdir()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(sharded_worker, args=(folder,), nprocs=2)
    saved = torch.load("guides/dcp_two.pt", weights_only=True)
    loop = loops.Loop("sharded", loops.make_data())
    loop.load(saved)
    checkpoint.load(loop.guide, "guides/dcp_two")
    torch.save({"weights": weights(loop)}, "guides/dcp_two.pt")


# ---------------------------------------------------------------------------------------------- adapters


def write_adapters() -> None:
    """Each trains to its end and is saved on the way; the losses of all steps are kept."""
    from lightning.pytorch import Callback

    from attittud.integrations.lightning import AttittudMixin
    from attittud.integrations.transformers import AttittudTrainer

    curves = {}
    trainer = loops.make_trainer(AttittudTrainer, Path("trainer"), 7, save_at=4)
    trainer.train()
    curves["trainer"] = loops.trainer_curve(trainer)
    # The Trainer needs these files to go on. Its other files name machines.
    for path in Path("trainer").rglob("*"):
        wanted = (
            "model.safetensors",
            "optimizer.pt",
            "scheduler.pt",
            "trainer_state.json",
            "attittud.pt",
            "config.json",
        )
        if path.is_file() and (path.parent.name != "checkpoint-4" or path.name not in wanted):
            path.unlink()

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.save_checkpoint("lightning/last.ckpt")

    curves["lightning"] = loops.fit(loops.make_module(AttittudMixin, loops.make_data()), 3, [Save()])
    curves["accelerate"] = loops.accelerated(Path("accelerate"), loops.make_data(), 8, save_at=5)
    Path("accelerate/random_states_0.pkl").unlink()  # large, and nothing is random there
    Path("expected/curves.json").write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------- the end


def tidy() -> None:
    """Remove locks, which are empty, and everything that names the machine."""
    for path in Path.cwd().rglob("*"):
        if path.name in (".lock", "__pycache__"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif path.is_file():
            path.chmod(0o644)  # some libraries write for their user alone
    for path in sorted(Path("trainer").glob("*")):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    packages = ("transformers", "lightning", "accelerate", "safetensors", "numpy", "scikit-learn", "pyarrow", "pillow")
    found = {name: value for name, value in provenance(packages).items() if name != "cores"}
    Path("made_with.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    with gzip.open("compared.tar.gz") as file:
        contents = {"compared.tar.gz": file.read()}
    contents |= {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}
    for name, content in contents.items():
        for word in (str(Path.home()).encode(), tempfile.gettempdir().encode(), os.uname().nodename.encode() + b"."):
            assert word not in content or name == "make_old_files.py", f"{name} has {word!r} in it"


if __name__ == "__main__":
    main()
