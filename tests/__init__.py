"""The tests: a mirror of the source tree, and what they share in `helpers`."""
