"""How a trained model is used: labels and probabilities for new inputs."""
