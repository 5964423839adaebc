"""One update: primary gradient, auxiliary gradients, basis, weights, `.grad`."""
