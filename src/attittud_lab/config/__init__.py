"""Configurations: their fields, files and overrides, and errors with a line number."""
