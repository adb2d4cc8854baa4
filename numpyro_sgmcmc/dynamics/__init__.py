"""Stochastic differential equations, one a file, their metrics (masses), and the integrators that step them."""
