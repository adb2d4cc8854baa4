"""Checks of the matrices of a recipe where a chain starts: each error names the entry and the way out."""

import numpy as np

from numpyro_sgmcmc.dynamics.matrices import Layout

TOLERANCE = 1e-4  # of what is zero, relative to the largest entry: D and Q may be computed in single precision


def check_matrix(what: str, value: np.ndarray, layout: Layout) -> None:
    """
    :param what: ``"D"``, symmetric and positive semi-definite, or ``"Q"``, skew.
    :param value: the matrix, shape ``(n, n)``, its diagonal where there is no more, shape ``(n,)``, or for a linear
        map what products with random vectors have shown, see :meth:`~.matrices.Matrix.shown`.
    :raises ValueError: names the first wrong entry.
    """
    matrix = value if value.ndim == 2 else np.diag(value)
    if not np.isfinite(matrix).all():
        i, j = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(f"{what} is not finite where the chain starts, at {_entry(layout, i, j)}: {matrix[i, j]}.")
    sign, kind = (1, "symmetric") if what == "D" else (-1, "skew")
    size = max(np.abs(matrix).max(), np.finfo(float).tiny)
    wrong = np.abs(matrix - sign * matrix.T) > TOLERANCE * size
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        mirrored = f"{what}[j, i] = {'-' if sign < 0 else ''}{what}[i, j]"
        raise ValueError(
            f"{what} is not {kind} where the chain starts: at {_entry(layout, i, j)} it is {matrix[i, j]:.6g}, "
            f"mirrored {matrix[j, i]:.6g}. The recipe leaves exp(-H) invariant only if {mirrored}."
        )
    if what == "D":
        _check_positive(matrix, layout, "D is not positive semi-definite where the chain starts", "")


def check_noise(value: np.ndarray, layout: Layout) -> None:
    """
    :param value: 2 D h - B h^2, shape ``(n, n)`` or its diagonal.
    :raises ValueError: more noise is to be taken out than is injected.
    """
    matrix = value if value.ndim == 2 else np.diag(value)
    _check_positive(
        matrix,
        layout,
        "gradient_noise= is more than the dynamics injects: 2 D h - B h^2 is not positive semi-definite",
        " Take a smaller step_size, a larger D or a larger batch_size.",
    )


def _check_positive(matrix: np.ndarray, layout: Layout, complaint: str, way_out: str) -> None:
    scale = np.sqrt(np.abs(np.diag(matrix)))
    scale = np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2 / scale[:, None] / scale)
    if values[0] < -TOLERANCE:
        i = int(np.abs(vectors[:, 0]).argmax())
        raise ValueError(
            f"{complaint}: {_entry(layout, i, i)} is {matrix[i, i]:.6g}"
            + (
                f", and an eigenvector that leans on it has a negative eigenvalue.{way_out}"
                if matrix[i, i] >= 0
                else f".{way_out}"
            )
        )


def _entry(layout: Layout, i: int, j: int) -> str:
    return layout.name(i) if i == j else f"({layout.name(i)}, {layout.name(j)})"
