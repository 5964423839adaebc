"""Language models: texts that become tokens, and a training that says what was forgotten."""
