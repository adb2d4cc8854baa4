"""Diagnostics of a run, predictions, and conversion to ArviZ."""
