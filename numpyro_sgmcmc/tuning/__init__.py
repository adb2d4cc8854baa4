"""Where chains start and how long their steps are."""
