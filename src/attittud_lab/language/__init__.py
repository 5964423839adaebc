"""Language models: texts become tokens, and training shows what was learned and forgotten."""
