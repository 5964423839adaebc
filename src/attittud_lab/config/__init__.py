"""Configurations: their fields, files and overrides, and errors with a line number."""

COMPARED = ("pretrain", "pcgrad", "drop_harmful", "flip", "auto")
"""The default of compare.strategies.

It is here because the schema imports pydantic, which would make `--help` slow.
"""
