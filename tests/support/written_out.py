"""
The samplers once more, in plain NumPy and from the equations alone: dynamics by the letters of docs/notation.md,
estimators by the formulas of their papers. Nothing of the package is used, nothing is fast.

The model is a logistic regression: prior N(0, 4), rows x_i, y_i in {0, 1}.
"""

import numpy as np


class Regression:
    """Gradients of its energies."""

    def __init__(self, X, y):
        self.X, self.y, self.size = X, y, len(y)

    def prior(self, z):
        return z / 4

    def row(self, z, i):
        return self.X[i] * (1 / (1 + np.exp(-self.X[i] @ z)) - self.y[i])

    def rows(self, z, rows):
        return sum(self.row(z, i) for i in rows)


class Plain:
    def __init__(self, model, z):
        self.model = model

    def begin(self, i, z):
        """What happens before step i."""

    def gradient(self, z, rows):
        return self.model.prior(z) + self.model.size / len(rows) * self.model.rows(z, rows)

    def end(self):
        """What happens after a step."""


class Anchored(Plain):
    """ControlVariate at ``center``, or SVRG with a new anchor every ``m`` steps (Dubey et al. 2016, algorithm 2)."""

    def __init__(self, model, z, center=None, m=None):
        super().__init__(model, z)
        self.anchor, self.m = z if center is None else center, m

    def begin(self, i, z):
        if self.m and i > 0 and i % self.m == 0:
            self.anchor = z

    def gradient(self, z, rows):
        full = self.model.prior(self.anchor) + self.model.rows(self.anchor, range(self.model.size))
        return super().gradient(z, rows) - super().gradient(self.anchor, rows) + full


class Table(Plain):
    """SAGA (Dubey et al. 2016, algorithm 1); its units are rows, or batches of neighbouring rows."""

    def __init__(self, model, z, init="full", batch=1):
        super().__init__(model, z)
        self.batch, self.init = batch, init
        self.units = [range(first, min(first + batch, model.size)) for first in range(0, model.size, batch)]
        self.table = {}
        if init != "online":
            self.table = {k: (init == "full") * model.rows(z, unit) for k, unit in enumerate(self.units)}

    def gradient(self, z, rows):
        K = len(self.units)
        chosen = [rows[0] // self.batch] if self.batch > 1 else list(rows)
        # "online": what has not been seen stands at the mean of what has
        mean = sum(self.table.values()) / max(1, len(self.table))
        remembered = [self.table.get(k, mean) for k in range(K)]
        self.new = {k: self.model.rows(z, self.units[k]) for k in chosen}
        change = sum(self.new[k] - remembered[k] for k in chosen)
        return self.model.prior(z) + sum(remembered) + K / len(chosen) * change

    def end(self):
        self.table |= self.new


def run(estimator, word, h, rows, noises, z, p=None, xi=None, gradient=None, *, D, mass, common, s2=0):
    """
    Steps of the dynamics.

    :param word: letters of the flows.
    :param h: step sizes, one a step.
    :param rows: row numbers, one list a step.
    :param noises: standard normal vectors for the noisy letters of a step, the same in every step.
    :param p: momentum, or None for the first-order dynamics.
    :param xi: thermostats, or None for a constant friction D.
    :param gradient: the gradient that the first kick finds, where a word kicks before it moves.
    :param mass: of each coordinate.
    :param bool common: one thermostat in all.
    :param s2: variance of the gradient's noise that the letter G is told.
    """
    for i, size in enumerate(h):
        estimator.begin(i, z)
        noise = iter(noises)
        for letter in word:
            t = size / word.count(letter)
            friction = D if xi is None else xi
            if letter in "BE" and gradient is None:
                gradient = estimator.gradient(z, rows[i])
            if p is None:
                z, gradient = z - t * gradient / mass + np.sqrt(2 * t / mass) * next(noise), None
            elif letter == "A":
                z, gradient = z + t * p / mass, None
            elif letter == "B":
                p = p - t * gradient
            elif letter == "F":
                p = np.exp(-friction * t) * p
            elif letter == "N":
                p = p + np.sqrt(2 * D * t * mass) * next(noise)
            elif letter == "O":
                decay = np.exp(-friction * t)
                p = decay * p + np.sqrt(D * mass * (1 - decay**2) / friction) * next(noise)
            elif letter == "E":
                p = p - t * (gradient + friction * p) + np.sqrt(2 * D * t * mass) * next(noise)
            elif letter == "G":
                c1, k = np.tanh(D * t / 2), t**2 * s2 / (4 * mass)
                a = (1 - c1 - k) / (1 + c1 + k)
                p = a * p + (1 + a) * np.sqrt(c1 * mass) * next(noise)
            elif letter == "D":
                energy = p * p / mass
                xi = xi + t * ((energy.mean() if common else energy) - 1)
        estimator.end()
    return z, p, xi
