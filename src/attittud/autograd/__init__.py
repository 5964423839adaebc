"""From losses to gradients: the parameters an autograd graph reaches, and their gradients as one flat vector."""
