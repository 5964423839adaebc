"""The folder of a run: writing its files and reading them again."""
