"""A model and its data -> the energies of the prior, of each row, and of a minibatch."""
