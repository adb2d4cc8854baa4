"""From a NumPyro model to a potential: the model's structure, its potential, its global and local latent variables."""
