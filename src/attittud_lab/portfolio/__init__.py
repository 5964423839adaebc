"""Several strategies tried on folds of the labels: the losers stop early, and the best become one model."""
