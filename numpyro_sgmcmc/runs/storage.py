"""
Stores a run on disk such that the process may be killed between any two instructions.

Draws are appended to Zarr arrays, see :mod:`~numpyro_sgmcmc.runs.zarr_arrays`. The state is written to a new ``.npz``
file each time, after the draws, under another name, and then renamed. It contains the number of its draws:

    draws, fsync -> state, fsync -> rename, fsync of the folder -> older states removed

A resumed run cuts the draws to that number. So a complete state and its draws exist at any time. The two last states
are kept; if one cannot be read, the previous one is used. Nothing is pickled.
"""

from collections.abc import Callable, Sequence
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
import zipfile
import zlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils.compat import warn

KEPT = 2  # number of states that are kept
UNREADABLE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


class Checkpoint(NamedTuple):
    transition: int  # number of transitions so far, including the warm-up
    draws: int  # number of draws kept of each chain
    leaves: list[np.ndarray]  # leaves of the state, in the order of jax.tree.leaves


def write_whole(path: Path, write: Any, at_once: bool = True) -> None:
    """
    Writes a file atomically: under another name, then a rename; ``at_once`` waits about 20 ms until it is on the disk,
    which matters only after a power failure.
    """
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        write(file)
        file.flush()
        if at_once:
            os.fsync(file.fileno())
    os.replace(part, path)
    if at_once:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Writes the names of files to the disk; only POSIX allows and needs this."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write_json(path: Path, content: Any, at_once: bool = True) -> None:
    """Writes ``content`` as JSON, atomically."""
    write_whole(path, lambda file: file.write(json.dumps(content, indent=1).encode()), at_once)


# -- the state ------------------------------------------------------------------------------------------------------


def to_host(state: Any) -> list[np.ndarray]:
    """The leaves of a state, with typed keys replaced by their data."""
    return [np.asarray(random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in jax.tree.leaves(state)]


def to_device(leaves: Sequence[np.ndarray], like: Any, keys: jax.Array) -> Any:
    """The state with these leaves and the structure of ``like``; its typed keys are of the same kind as ``keys``."""
    old, treedef = jax.tree.flatten(like)

    def restored(leaf, like):
        return random.wrap_key_data(leaf, impl=random.key_impl(keys)) if _is_key(like) else jnp.asarray(leaf)

    return treedef.unflatten([restored(leaf, like) for leaf, like in zip(leaves, old, strict=True)])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a new file for the state, and removes all but the last two."""
    numbers = np.array([checkpoint.transition, checkpoint.draws], np.int64)
    arrays: dict[str, Any] = {f"leaf{k}": leaf for k, leaf in enumerate(checkpoint.leaves)}
    path = folder / f"state-{checkpoint.transition:012d}.npz"
    write_whole(path, lambda file: np.savez(file, numbers=numbers, **arrays))
    for old in _states(folder)[KEPT:]:
        old.unlink()


def load(folder: Path, count: int, check_draws: Callable[[int], Any]) -> Checkpoint | None:
    """The last complete checkpoint whose draws pass ``check_draws``, or None. Raises an error if all are damaged."""
    paths = _states(folder)
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as file:
                transition, draws = map(int, file["numbers"])
                leaves = [file[f"leaf{k}"] for k in range(count)]
            check_draws(draws)
            for damaged in paths[: paths.index(path)]:
                damaged.unlink()
            return Checkpoint(transition, draws, leaves)
        except UNREADABLE as error:
            warn(f"the checkpoint {path} is damaged ({error}); the run continues from the previous one.")
    if paths:
        raise ValueError(
            f"no checkpoint in {folder} can be read. To start again, remove the folder, or give another one."
        )
    return None


def _states(folder: Path) -> list[Path]:
    """The files of states, the last one first."""
    return sorted(folder.glob("state-*.npz"), reverse=True)
