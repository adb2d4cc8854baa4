"""Where chains start, how long their steps are, and what is found in the warm-up."""
