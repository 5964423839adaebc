"""A look at a job's gradients before a day is spent on it."""
