"""The portfolio on new pairs of tasks: never regret, third round."""
