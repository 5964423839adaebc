"""The paper's experiments, run again: configurations, results that outlive their folders, miniature
data to try it.
"""
