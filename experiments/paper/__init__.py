"""The paper's tables and figures beside ours, from the committed results: `python -m experiments.paper.page`."""
