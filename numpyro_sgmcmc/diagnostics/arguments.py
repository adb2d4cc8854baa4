"""The arguments of the model of a run: those that a diagnostic is given are compared with them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.data.argument_checks import not_an_array
from numpyro_sgmcmc.data.arrays import named_leaves
from numpyro_sgmcmc.data.fingerprint import fingerprint
from numpyro_sgmcmc.diagnostics.draws import checked_run
from numpyro_sgmcmc.engine.state import Marks, SGMCMCState


def takes_arguments(mcmc: MCMC, state: SGMCMCState) -> bool:
    """Whether the run had model arguments, of which only the fingerprint may be left after unpickling."""
    marks = np.asarray(Marks.of(state.marks).fingerprint)
    return bool(mcmc._args or mcmc._kwargs or not np.isin(marks, (0, fingerprint((), {}))).all())


def arguments_of(
    mcmc: MCMC, model_args: tuple, model_kwargs: Mapping[str, Any], caller: str
) -> tuple[tuple, dict[str, Any]]:
    """
    The given arguments of the model, or those that the run has kept if there are none.

    :raises ValueError: if the given ones are not those of the run, or if they are not known any more.
    """
    kept = tuple(mcmc._args or ()), dict(mcmc._kwargs or {})
    _, state = checked_run(mcmc, caller)
    if not (model_args or model_kwargs):
        if not any(kept) and takes_arguments(mcmc, state):
            raise ValueError(
                f"{caller}(mcmc): the arguments of the run are not known any more, as after unpickling. Pass those of "
                "mcmc.run(...)."
            )
        return kept
    different = _difference((model_args, model_kwargs), kept, Marks.of(state.marks))
    if different is not None:
        raise ValueError(
            f"{caller}(mcmc, ...): the data are not those of the run{different}. Pass the arguments of mcmc.run(...), "
            "transformed in the same way and with their rows in the same order."
        )
    return model_args, dict(model_kwargs)


def _difference(given: tuple, kept: tuple, marks: Marks) -> str | None:
    """
    How the given arguments differ from those of the run, as far as that is known; None if they do not.

    :param kept: the arguments of the run, empty after unpickling.
    """
    ours, theirs = (dict(named_leaves(*arguments)) for arguments in (given, kept))
    if ours.keys() == theirs.keys():  # one by one, so that arguments of the same shape are not exchanged
        changed = [name for name in ours if fingerprint((ours[name],), {}) != fingerprint((theirs[name],), {})]
        shapes = [tuple(getattr(of[name], "shape", ()) for of in (ours, theirs)) for name in changed]
        other = [f"{name} has shape {a}, in the run {b}" for name, (a, b) in zip(changed, shapes) if a != b]
        found = other or [f"{name} has other values" for name in changed]
        return ": " + "; ".join(found) if found else None
    mark = fingerprint(*given)
    if not mark or np.any(marks.data_changed) or np.all((marks.fingerprint == mark) | (marks.fingerprint == 0)):
        return None
    odd = not_an_array(*given)
    return f": {odd}" if odd else ""
