"""Who trains the model: one process, replicas of it, or shards of it."""
