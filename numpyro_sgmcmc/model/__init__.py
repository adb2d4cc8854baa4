"""What a NumPyro model is to a sampler: its structure, what of it can be minibatched, its potential."""
