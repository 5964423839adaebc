"""Where examples come from, how they are split, and how they become tensors."""
