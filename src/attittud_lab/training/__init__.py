"""From a job to a trained model."""
