"""Products with long rows, in torch and in Triton."""
