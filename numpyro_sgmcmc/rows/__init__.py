"""Which rows of the data a step sees, and where they are read from."""
