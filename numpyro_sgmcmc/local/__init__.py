"""Latent variables of single rows: a model that has them -> a model of the global sites alone."""
