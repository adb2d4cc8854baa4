"""Checks of the matrices of a recipe at the start of a chain: each error names the entry and the condition."""

import numpy as np

from numpyro_sgmcmc.dynamics.matrices import Layout

TOLERANCE = 1e-4  # for zeros, relative to the largest entry: D and Q may be computed in single precision


def check_matrix(what: str, value: np.ndarray, layout: Layout) -> None:
    """
    :param what: ``"D"``, symmetric and positive semi-definite, or ``"Q"``, skew.
    :param value: the result of :meth:`~.matrices.Matrix.shown`.
    :raises ValueError: if an entry is wrong; the message names the first one.
    """
    if not np.isfinite(value).all():
        index = np.argwhere(~np.isfinite(value))[0]
        raise ValueError(
            f"{what} is not finite at the start of the chain: {_entry(layout, value, *index)} is {value[*index]}."
        )
    kind, sign, minus = ("symmetric", 1, "") if what == "D" else ("skew", -1, "-")
    wrong = np.abs(value - sign * value.T) > TOLERANCE * max(np.abs(value).max(), np.finfo(float).tiny)
    if wrong.any():
        index = np.argwhere(wrong)[0]
        raise ValueError(
            f"{what} is not {kind} at the start of the chain: {_entry(layout, value, *index)} is {value[*index]:.6g}, "
            f"its mirror image {value.T[*index]:.6g}. The recipe leaves exp(-H) invariant only if {what}[j, i] = "
            f"{minus}{what}[i, j]."
        )
    if what == "D":
        _check_positive(value, layout, "D is not positive semi-definite at the start of the chain", "")


def check_noise(value: np.ndarray, layout: Layout) -> None:
    """Raises a ValueError if more noise is to be subtracted than is injected: 2 D h - B h^2 is negative."""
    _check_positive(
        value,
        layout,
        "gradient_noise= is larger than the injected noise: 2 D h - B h^2 is not positive semi-definite",
        " Use a smaller step_size, a larger D or a larger batch_size.",
    )


def _check_positive(value: np.ndarray, layout: Layout, complaint: str, way_out: str) -> None:
    diagonal = value if value.ndim == 1 else np.diag(value)
    if (diagonal < 0).any():
        i = int(np.argmax(diagonal < 0))
        raise ValueError(f"{complaint}: {_entry(layout, value, i)} is {diagonal[i]:.6g}.{way_out}")
    if value.ndim == 1:
        return
    scale = np.where(diagonal > 0, np.sqrt(diagonal), 1)
    values, vectors = np.linalg.eigh((value + value.T) / 2 / scale[:, None] / scale)
    if values[0] < -TOLERANCE:
        i = int(np.abs(vectors[:, 0]).argmax())
        raise ValueError(
            f"{complaint}: it has a negative eigenvalue, whose eigenvector is largest at {_entry(layout, value, i)}."
            f"{way_out}"
        )


def _entry(layout: Layout, value: np.ndarray, i: int, j: int | None = None) -> str:
    if len(value) != layout.size:
        return "a product with vectors of signs"  # for a large matrix only these are checked
    return layout.name(i) if j is None or i == j else f"({layout.name(i)}, {layout.name(j)})"
