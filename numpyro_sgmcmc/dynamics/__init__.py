"""Stochastic differential equations, one a file, and the integrators that step them."""
