"""Random numbers, pytrees, validation of arguments, helpers for JAX and NumPyro."""
