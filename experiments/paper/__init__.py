"""The paper's tables and figures with ours, from the committed results: `python -m
experiments.paper.page`.
"""
