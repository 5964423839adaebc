"""What tests share: models, oracles, made-up data, worker processes."""
