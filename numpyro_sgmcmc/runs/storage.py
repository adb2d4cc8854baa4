"""
What a run keeps on disk, so that a process may be killed between any two instructions.

Draws are appended to arrays of Zarr, see :mod:`~numpyro_sgmcmc.runs.zarr_arrays`. The state is a new ``.npz`` file each
time. It is written last, under another name, and renamed, and says how many draws belong to it:

    draws, fsync -> state, fsync -> rename, fsync of the folder -> older states removed

A resume cuts the draws to that number. Whatever is between the steps of this list, a whole state and its draws are
there. The two last states are kept; one that cannot be read is skipped for the one before. Nothing is pickled.
"""

from collections.abc import Callable, Sequence
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
import warnings
import zipfile
import zlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils.compat import stack_level

KEPT = 2  # states
UNREADABLE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


class Checkpoint(NamedTuple):
    """
    - **transition** - how many have been made, the warm-up's among them.
    - **draws** - how many of each chain have been kept.
    - **leaves** - of the state, in the order of ``jax.tree.leaves``.
    """

    transition: int
    draws: int
    leaves: list[np.ndarray]


def write_whole(path: Path, write: Any, at_once: bool = True) -> None:
    """
    A file that is there as a whole or not at all: ``write(file)`` under another name, and a rename.

    :param bool at_once: whether to wait until it is on the disk, which takes some 20 ms. Only a power failure tells
        the difference.
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
    """Names of files reach the disk; only POSIX can and needs to be asked."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write_json(path: Path, content: Any, at_once: bool = True) -> None:
    """As one whole file."""
    write_whole(path, lambda file: file.write(json.dumps(content, indent=1).encode()), at_once)


# -- the state ------------------------------------------------------------------------------------------------------


def to_host(state: Any) -> list[np.ndarray]:
    """The leaves of a state, the data of typed keys for keys."""
    return [np.asarray(random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in jax.tree.leaves(state)]


def to_device(leaves: Sequence[np.ndarray], like: Any, keys: jax.Array) -> Any:
    """The state of these leaves; ``like`` has its structure, and its typed keys are of the kind of ``keys``."""
    old, treedef = jax.tree.flatten(like)

    def one(leaf, like):
        return random.wrap_key_data(leaf, impl=random.key_impl(keys)) if _is_key(like) else jnp.asarray(leaf)

    return treedef.unflatten([one(leaf, like) for leaf, like in zip(leaves, old, strict=True)])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """A new file for the state; those before the last two are removed."""
    numbers = np.array([checkpoint.transition, checkpoint.draws], np.int64)
    arrays: dict[str, Any] = {f"leaf{k}": leaf for k, leaf in enumerate(checkpoint.leaves)}
    path = folder / f"state-{checkpoint.transition:012d}.npz"
    write_whole(path, lambda file: np.savez(file, numbers=numbers, **arrays))
    for old in _states(folder)[KEPT:]:
        old.unlink()


def load(folder: Path, count: int, check_draws: Callable[[int], Any]) -> Checkpoint | None:
    """
    The last whole checkpoint, or None where none was ever written.

    :param int count: leaves of a state.
    :param check_draws: raises a ValueError where fewer draws than that are on disk.
    :raises ValueError: every one of them is damaged.
    """
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
            warnings.warn(
                f"the checkpoint {path} is damaged ({error}); the run goes on from the one before.",
                stacklevel=stack_level(),
            )
    if paths:
        raise ValueError(
            f"no checkpoint in {folder} can be read. Remove the folder, or give another one, to start again."
        )
    return None


def _states(folder: Path) -> list[Path]:
    """The last one first."""
    return sorted(folder.glob("state-*.npz"), reverse=True)
