"""Runs that can be continued after their process has ended: segments of a run, and their storage on disk."""
