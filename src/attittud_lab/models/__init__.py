"""Networks by name: a shared body and one head per task."""
