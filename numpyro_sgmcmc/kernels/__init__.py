"""Named algorithms, one per file: dynamics, defaults and options."""
