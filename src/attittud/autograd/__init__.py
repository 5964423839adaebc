"""From losses to gradients: what an autograd graph reaches, and how its gradients lie in one flat vector."""
