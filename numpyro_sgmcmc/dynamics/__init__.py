"""Stochastic differential equations, one per file, their metrics (masses), and their integrators."""
