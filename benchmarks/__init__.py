"""What a step costs: ATTITTUD beside the plain multitask step and its peers, on one model and one set of data."""
