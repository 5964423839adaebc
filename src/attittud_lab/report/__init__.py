"""A run, a comparison or the demo as one HTML page that needs nothing else."""
