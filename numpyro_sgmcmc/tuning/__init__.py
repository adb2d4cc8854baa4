"""Starts of chains, step sizes, and the settings that the warm-up chooses."""
