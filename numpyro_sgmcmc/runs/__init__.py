"""Runs that outlive a process: segments of a run, and their place on disk."""
