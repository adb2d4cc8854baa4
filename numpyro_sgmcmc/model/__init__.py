"""What a NumPyro model is to a sampler: structure, potential, latent variables, those that belong to a row among them."""
