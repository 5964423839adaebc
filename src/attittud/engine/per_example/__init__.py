"""Engine `hooks`: the gradients of single examples, layer by layer, in one backward pass."""
