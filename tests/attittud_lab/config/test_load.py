"""Configurations: every mistake is answered with its line and its cure."""

import json
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attittud_lab.commands import known_names
from attittud_lab.config.load import ConfigError, changed, dump, load, loads
from attittud_lab.config.schema import Config, DataConfig, PrimaryConfig, to_dict
from attittud_lab.errors import InputError

NAMES = known_names()


@settings(max_examples=40)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=4),
    st.floats(0, 1),
)
def test_dump_and_load_are_inverse(classes, share):
    config = Config(data=DataConfig(primary=PrimaryConfig(classes=classes, validation=share)))
    assert loads(dump(config)) == config


MISTAKES = {
    "trainig: 3": r"job.yaml:1: trainig: .*'training'",
    "training:\n  guided:\n    lr: fast": r"job.yaml:3: training.guided.lr: .*'fast'",
    "seed: -1": "seed: .*-1",
    "model: [mlp]": "model: .*mlp",
    "training: {mode: jont}": "training.mode: .*'joint'.*'jont'",
    "compare: {weights: [1, 0]}": r"compare.weights\[1\]: .*got '0'",
    "strategy: {eta: {harmfull: 1}}": "strategy.eta.harmfull: .*'harmful'",
    "data: {primary: {classes: cat}}": "data.primary.classes: .*'cat'",
    "data: {auxiliary: {a: digits, a: digits}}": "job.yaml:1: a: ",
    "data: {auxiliary: {primary: digits}}": "data.auxiliary: .*'primary'",
    "seed: 1\nseed: 2": "job.yaml:2: seed: ",
    "training: {guided: {lr: .inf}}": "'.inf'",
    "a: [": "job.yaml:.* not valid YAML",
    "[" * 5000: "recursion",
    "a: &x [*x]": "recursion",
    "a: !!python/object/apply:os.system [echo]": "tag ",
    "? [a]\n: 1": "a key",
}


def test_mistakes_are_answered_with_their_line_and_their_culprit():
    for text, culprit in MISTAKES.items():
        with pytest.raises(ConfigError, match=culprit) as caught:
            loads(text, name="job.yaml", names=NAMES)
        assert "\n" not in str(caught.value) and str(caught.value).startswith("job.yaml")


def settings_of(section: type = Config, path: str = "") -> dict[str, type]:
    """Every path of a configuration, with its section."""
    found = {}
    for entry in fields(section):
        here = f"{path}{entry.name}"
        found[here] = section
        value = getattr(section(), entry.name)
        found |= settings_of(type(value), f"{here}.") if is_dataclass(value) else {}
    return found


PATHS = [*settings_of(), "data.auxiliary.a.path", "data.auxiliary.a.weight"]
PATHS += ["strategy.eta.harmful", "", "a..b", "x" * 300]

WORDS = """
~ null None true yes [ [] {} {a:b} '1' "\\0" "\\ud800" 1e-4 1e999 -1e400 0x10 1_000 1__0 -0 +5 1e1000000
hf:../x ../x ~nobody/x *a !!python/none flip auto custom exact small-cnn wideresnet-22-4 hf: timm: digits cuda:99
"""
ODD = [*WORDS.split(), "", "{a: b}", "[[1, 2], {a: 3}]", "a\nb", "&a 1", "\ufeff", "9" * 5000]
ODD += ["1." + "0" * 5000, "/" * 5000, "x" * 300, "{" * 40, "[" * 4000]

VALUES = st.one_of(
    st.text(max_size=30), st.integers().map(str), st.floats().map(str), st.sampled_from(ODD)
)
OVERRIDES = st.lists(st.builds("{}={}".format, st.sampled_from(PATHS), VALUES) | VALUES, max_size=4)

LINES = st.builds(
    "{}{}: {}".format,
    st.sampled_from(["", "  ", "    ", "- "]),
    st.sampled_from([*PATHS, *Config.__annotations__]),
    VALUES,
)

TEXTS = st.lists(LINES, max_size=8).map("\n".join) | st.text()


@settings(max_examples=300)
@given(TEXTS, OVERRIDES)
def test_any_text_is_read_or_refused(text, overrides):
    """Never a traceback; what was read can be written, read again and shown in JSON."""
    try:
        config = loads(text, overrides, names=NAMES)
    except InputError as error:
        said = str(error)
    else:
        said = ""
        assert loads(dump(config), names=NAMES) == config
        json.dumps(to_dict(config), ensure_ascii=False).encode()
    assert len(said) < 2000


def test_changed_keeps_all_other_settings():
    sources = "data: {auxiliary: {a: digits, b: digits}}"
    config = loads(f"strategy: {{name: flip, rank: 3}}\n{sources}", ["output=../x"])
    settings = ["strategy.rank=4", "data.auxiliary.a.weight=2", "training.finetune.steps=9"]
    other = changed(config, settings)
    assert (other.strategy.name, other.strategy.rank, other.output) == ("flip", 4, config.output)
    assert [source.weight for source in other.data.auxiliary.values()] == [2, 1]
    assert other.training.finetune.lr == 1e-4
    assert changed(config, []) == config
    with pytest.raises(ConfigError, match=r"\(strategy.rank=x\): strategy.rank: .*integer"):
        changed(config, ["strategy.rank=x"])


def test_a_configuration_inherits_from_its_base(tmp_path):
    base = tmp_path / "shared" / "base.yaml"
    base.parent.mkdir()
    base.write_text("strategy: flip\ntraining: {guided: {lr: 0.1, steps: 5}}\nseed: 4\n")
    child = tmp_path / "child.yaml"
    own = "strategy: {rank: 3}\ntraining: {guided: {steps: 9}}\n"
    child.write_text(f"base: shared/base.yaml\n{own}")
    config = load(child, ["seed=7", "training.guided.lr=3e-4"])
    assert (config.strategy.name, config.strategy.rank, config.seed) == ("flip", 3, 7)
    assert (config.training.guided.lr, config.training.guided.steps) == (3e-4, 9)
    base.write_text("base: ../child.yaml\n")
    for name, message in {
        "shared/base.yaml": "forms a circle",
        "nowhere.yaml": "nowhere.yaml: cannot read the configuration",
        str(base): "relative path",
    }.items():
        child.write_text(f"base: {name}\n")
        with pytest.raises(ConfigError, match=message):
            load(child)


def test_an_override_that_a_later_override_would_undo_is_refused():
    with pytest.raises(ConfigError, match=r"strategy=flip .*strategy.rank=3"):
        loads("", ["seed=1", "strategy.rank=3", "strategy=flip"])
    with pytest.raises(ConfigError, match=r"write data.auxiliary=\{\} first"):
        loads("", ["data.auxiliary.a.path=a.csv", "data.auxiliary={}"])
    found = set(loads("", ["data.auxiliary.a=a.csv", "data.auxiliary={b: b.csv}"]).data.auxiliary)
    assert found == {"a", "b"}
    assert loads("", ["strategy=flip", "strategy.rank=3"]).strategy.rank == 3
    # said twice, nothing is lost
    assert loads("", ["strategy.rank=3", "strategy.rank=4"]).strategy.rank == 4
    kept = loads("strategy: {name: auto, rank: 3}", ["strategy.name=flip"]).strategy
    assert (kept.name, kept.rank) == ("flip", 3)


def test_overrides_change_settings():
    assert loads("strategy: flip", ["strategy.rank=3"]).strategy.name == "flip"
    assert loads("strategy: {name: flip, rank: 3}", ["strategy=pcgrad"]).strategy.rank == 10
    assert loads("", ["data.primary.classes=[no, yes]"]).data.primary.classes == ["no", "yes"]
    assert loads("", ["output=runs #2: new"]).output == "runs #2: new"  # no comment, and no mapping
    assert loads("", ["output=*a"]).output == "*a" and loads("", ["device="]).device == ""
    assert loads("", ["strategy.eta=null", "model.weights=null"]).model.weights is None
    with pytest.raises(ConfigError, match=r"seed: the key is given twice"):
        loads("seed: 1\nseed: 2", ["output=x"])  # also where settings are merged
    for text, message in {
        "seed": "KEY=VALUE",
        "=1": "KEY=VALUE",
        "a..b=1": "KEY=VALUE",
        "traning.mode=joint": r"command line \(traning.mode=joint\): traning: .*'training'",
        "seed=[": "not valid YAML",
        "seed='1'\noutput: x": "not valid YAML",
        "model.weights=": r"command line \(model.weights=\): model.weights: ",
    }.items():
        with pytest.raises(ConfigError, match=message):
            loads("", [text])
