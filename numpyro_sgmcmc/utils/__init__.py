"""Random numbers, pytrees, statistics, validation of arguments, helpers for JAX."""
