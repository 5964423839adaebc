"""Try simple learners, and networks if they are named, on folds of the labels, and make one model
of the best.
"""
