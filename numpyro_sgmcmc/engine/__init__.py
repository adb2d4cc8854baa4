"""The contract with ``numpyro.infer.MCMC``: chains, their state, and the settings of a run."""
