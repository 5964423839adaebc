"""The same job under several strategies with paired seeds, and what follows from it."""
