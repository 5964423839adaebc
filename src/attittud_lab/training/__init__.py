"""Train a model as a job says."""
