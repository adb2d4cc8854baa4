"""What a NumPyro model is to a sampler: its structure, its potential, its latent variables (those of a row too)."""
