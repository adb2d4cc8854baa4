"""Named algorithms, one a file; the chain; the contract with ``numpyro.infer.MCMC``."""
