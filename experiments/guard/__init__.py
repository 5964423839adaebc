"""Does any way to protect a language model beat the simple ones? See README.md."""
