"""From losses to gradients: the parameters that an autograd graph reaches, and their gradients as
one flat vector.
"""
