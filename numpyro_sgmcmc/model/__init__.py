"""What a NumPyro model is to a sampler: its sites and plates, and the handlers that run it on some rows."""
