"""Which rows a step sees."""
