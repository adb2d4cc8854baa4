"""Schemes that choose the rows of the data for each step."""
