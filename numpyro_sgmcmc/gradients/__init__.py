"""Gradient estimators: rows -> unbiased gradient of U."""
