"""Try several strategies on folds of the labels, stop the losers early, and make one model from the
best.
"""
