"""The product of a Hessian with a vector, for models with functions that have no forward mode as well."""

from collections.abc import Callable
from typing import Any

import jax


def gradient_and_product(gradient: Callable[[Any], Any], z: Any, v: Any) -> tuple[Any, Any]:
    r"""
    :math:`g(z)` and :math:`H v`, where :math:`H = \partial g` is symmetric.

    H v is the derivative of g along v. If the model has a function without a forward mode (``jax.custom_vjp``, as
    ``odeint``), it is the gradient of :math:`v^T g`.
    """
    try:
        return jax.jvp(gradient, (z,), (v,))
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
    value, transposed = jax.vjp(gradient, z)
    return value, transposed(v)[0]
