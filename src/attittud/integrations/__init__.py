"""Thin adapters to the frameworks people already use; each needs the extra of its name."""
