"""The JSON schema says what the loader says, and documents every field."""

import json
import re
from pathlib import Path

import pytest

from attittud_lab.config.load import ConfigError, load, loads
from attittud_lab.config.schema import json_schema

ROOT = Path(__file__).parents[3]


def test_every_field_is_documented():
    definitions = json_schema()["$defs"]
    assert len(definitions) > 8
    for name, definition in definitions.items():
        found = definition.get("anyOf", [definition])[-1]
        assert found["description"] and not found["description"].startswith(name)
        for field, about in found["properties"].items():
            where = f"{name}.{field}"
            assert len(about["description"]) > 10 and "\n" not in about["description"], where
            assert "default" in about or field in ("base", *found.get("required", ())), where


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name
)
def test_examples_are_valid(path):
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    load(path)
    jsonschema.validate(
        yaml.safe_load(re.sub(r"(\d)e-", r"\1.0e-", path.read_text())), json_schema()
    )


def test_schema_says_what_the_loader_says():
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")
    validator = jsonschema.Draft202012Validator
    validator.check_schema(json_schema())
    training = json_schema()["$defs"]["Config"]["properties"]["training"]["default"]
    valid = json.loads(json.dumps(training))
    checker = validator(json_schema())
    assert checker.is_valid({"training": valid, "strategy": "flip", "base": "x.yaml"})
    for wrong in (
        {"trainig": {}},
        {"seed": -1},
        {"seed": "x"},
        {"training": {"mode": "jont"}},
        {"data": {"primary": {"train": "a"}}},
        {"strategy": {"rank": 5000}},
        {"training": {"guided": {"lr": 0}}},
        {"model": ["mlp"]},
    ):
        assert not checker.is_valid(wrong), wrong
        with pytest.raises(ConfigError):
            loads(json.dumps(wrong))
