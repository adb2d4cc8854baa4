"""Checks of the matrices of a recipe where a chain starts: each error names the entry and the way out."""

import numpy as np

from numpyro_sgmcmc.dynamics.matrices import Layout

TOLERANCE = 1e-4  # of what is zero, relative to the largest entry: D and Q may be computed in single precision


def check_matrix(what: str, value: np.ndarray, layout: Layout) -> None:
    """
    :param what: ``"D"``, symmetric and positive semi-definite, or ``"Q"``, skew.
    :param value: as :meth:`~.matrices.Matrix.shown` returns it.
    :raises ValueError: names the first wrong entry.
    """
    if not np.isfinite(value).all():
        at = np.argwhere(~np.isfinite(value))[0]
        raise ValueError(f"{what} is not finite where the chain starts, at {_entry(layout, value, *at)}: {value[*at]}.")
    sign, kind = (1, "symmetric") if what == "D" else (-1, "skew")
    mirror = value.T if what == "D" else -value.T
    wrong = np.abs(value - mirror) > TOLERANCE * max(np.abs(value).max(), np.finfo(float).tiny)
    if wrong.any():
        at = np.argwhere(wrong)[0]
        mirrored = f"{what}[j, i] = {'-' if sign < 0 else ''}{what}[i, j]"
        raise ValueError(
            f"{what} is not {kind} where the chain starts: at {_entry(layout, value, *at)} it is {value[*at]:.6g}, "
            f"mirrored {value.T[*at]:.6g}. The recipe leaves exp(-H) invariant only if {mirrored}."
        )
    if what == "D":
        _check_positive(value, layout, "D is not positive semi-definite where the chain starts", "")


def check_noise(value: np.ndarray, layout: Layout) -> None:
    """
    :param value: 2 D h - B h^2, shape ``(n, n)`` or its diagonal.
    :raises ValueError: more noise is to be taken out than is injected.
    """
    _check_positive(
        value,
        layout,
        "gradient_noise= is more than the dynamics injects: 2 D h - B h^2 is not positive semi-definite",
        " Take a smaller step_size, a larger D or a larger batch_size.",
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
        return "products with vectors of signs"  # of a large matrix no more is looked at
    return layout.name(i) if j is None or i == j else f"({layout.name(i)}, {layout.name(j)})"
