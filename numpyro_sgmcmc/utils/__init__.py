"""Random numbers, pytrees, validation of arguments, what JAX and NumPyro need."""
