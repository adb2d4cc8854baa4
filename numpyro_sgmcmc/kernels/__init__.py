"""Named algorithms, one per file; the chain; the interface to ``numpyro.infer.MCMC``."""
