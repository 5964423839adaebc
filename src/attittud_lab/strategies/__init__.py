"""How the gradients of the primary and the auxiliary tasks become one update."""
