"""The folder of a run: what is written into it, and how it is read again."""
