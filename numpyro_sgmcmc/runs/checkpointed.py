"""
A run that outlives its process: the chains advance by pieces, and after some of them their state is written.

A transition is a function of the state alone, the next key and the place in the sequence of minibatches among it. So a
run that goes on from a state makes the very draws that it would have made.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
import json
import logging
import os
from pathlib import Path
import time
from typing import Any, NamedTuple
from urllib.parse import quote
import zlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.kernels.sgmcmc import SGMCMC
from numpyro_sgmcmc.model.fingerprint import fingerprint
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.runs import storage
from numpyro_sgmcmc.runs.identity import check_same, checksum, versions
from numpyro_sgmcmc.runs.segments import Segments
from numpyro_sgmcmc.utils.compat import put_run
from numpyro_sgmcmc.utils.validation import checked_count, is_key

logger = logging.getLogger(__name__.partition(".")[0])


class Progress(NamedTuple):
    """
    What a hook is told at a checkpoint.

    - **transition**, **total** - made so far, and in the whole run, the warm-up's among them.
    - **draws** - of each chain, on disk.
    - **seconds** - since :meth:`Checkpointed.run` was called.
    - **left** - seconds, at the pace of this process so far; NaN before it has one.
    """

    transition: int
    total: int
    draws: int
    seconds: float
    left: float

    def __str__(self) -> str:
        return f"{self.transition} of {self.total} transitions, {self.draws} draws, {self.left:.0f} s left"


class Checkpointed:
    """
    A run that goes on where it was when its process ended, however that ended. The same lines start it and go on with
    it, and its draws are those of ``mcmc.run`` with the same key.

    With ``chain_method="parallel"`` NumPyro compiles start and loop as one program, which may round differently, so
    there the draws are those of an undisturbed run of ``Checkpointed``.

    The folder holds ``draws/*.npy``, one file for each site and collected field, of shape ``(draws, chains, ...)``,
    which ``numpy.load(..., mmap_mode="r")`` opens while the run goes on; ``state-*.npz``; and ``run.json``, which tells
    the run from others. No file is pickled. One process at a time may run in a folder.

    When the run has ended ``mcmc`` is as after ``mcmc.run``: ``get_samples``, ``last_state``, ``summary(mcmc)``, ArviZ.

    :param MCMC mcmc: with a kernel of this package; any chain method, thinning, number of chains. Its progress bar is
        not shown; every checkpoint is logged at level INFO.
    :param folder: is made if it does not exist.
    :param every: transitions between two checkpoints, or a :class:`~datetime.timedelta`. Whatever ends the process
        costs no more than this, and with a time also the piece under way, which takes about a tenth of it.
    :param hook: called with a :class:`~numpyro_sgmcmc.runs.checkpointed.Progress` after each checkpoint. What it raises
        ends the run, which can go on later.
    :raises TypeError: another kernel, or an ``every`` that is neither of the two.
    :raises ValueError: ``mcmc.post_warmup_state`` is set; ``every`` is not above 0.

    **Example**

    .. doctest::

        >>> import tempfile
        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD, Checkpointed
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> mcmc = MCMC(SGLD(model, step_size=2e-4, batch_size=100), num_warmup=500, num_samples=1000)
        >>> folder = tempfile.mkdtemp()
        >>> Checkpointed(mcmc, folder, every=300, hook=lambda at: print(at.transition, at.draws)).run(random.key(1), x)
        0 0
        300 0
        600 100
        900 400
        1200 700
        1500 1000
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.05)
        True
    """

    def __init__(
        self,
        mcmc: MCMC,
        folder: str | os.PathLike,
        *,
        every: int | timedelta,
        hook: Callable[[Progress], Any] | None = None,
    ):
        if not isinstance(mcmc, MCMC) or not isinstance(mcmc.sampler, SGMCMC):
            kind = type(getattr(mcmc, "sampler", mcmc)).__name__
            raise TypeError(f"Checkpointed(mcmc) is for runs of MCMC with a kernel of numpyro_sgmcmc, not {kind}.")
        if mcmc.post_warmup_state is not None:
            raise ValueError(
                "Checkpointed(mcmc) begins with the warm-up, and mcmc.post_warmup_state is set. Make a new MCMC; a run "
                "that was interrupted goes on from its folder."
            )
        if isinstance(every, timedelta):
            if every <= timedelta():
                raise ValueError(f"every={every} must be above 0.")
        else:
            checked_count("every", every)
        if hook is not None and not callable(hook):
            raise TypeError(f"hook={hook!r} must be a function of the progress, or None.")
        self.mcmc, self.folder, self.every, self.hook = mcmc, Path(folder), every, hook

    def run(
        self,
        rng_key: jax.Array,
        *args: Any,
        extra_fields: Sequence[str] = (),
        init_params: Any = None,
        **kwargs: Any,
    ) -> None:
        """
        Starts the run, or goes on with it. The arguments are those of :meth:`numpyro.infer.MCMC.run`.

        :raises ValueError: the folder holds a run of another model, kernel, key, version, or of other data or numbers;
            none of its checkpoints can be read.
        """
        mcmc = self.mcmc
        keys = random.split(rng_key, mcmc.num_chains) if mcmc.num_chains > 1 and is_key(rng_key) else rng_key
        init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
        fields = tuple(dict.fromkeys(("z", *mcmc.sampler.default_fields, *extra_fields)))
        segments = Segments(mcmc, keys, init_params, fields, args, kwargs)
        names = _names_of(segments)
        self._check_run(segments, rng_key, fields, names)
        leaves = jax.tree.leaves(segments.state)
        found = storage.load(self.folder, len(leaves))
        if found is None:
            state = segments.begin()
            found = storage.Checkpoint(0, 0, storage.to_host(state))
            storage.save(self.folder, found)
        else:
            state = storage.to_device(found.leaves, segments.state, rng_key)
        files = [
            storage.Growing(self.folder / "draws" / f"{quote(name, safe='')}.npy", shape, dtype, found.draws)
            for name, (shape, dtype) in zip(names, segments.shapes())
        ]
        try:
            state = self._go_on(segments, state, found.transition, files)
            draws = [np.load(file.path, mmap_mode="r") for file in files]
            put_run(mcmc, segments.whole(draws), state, args, kwargs)
        finally:
            for file in files:
                file.close()

    def _go_on(self, segments: Segments, state: Any, t: int, files: list[storage.Growing]) -> Any:
        begin = last = time.monotonic()
        first, saved, n = t, t, 1
        self._tell(segments, t, first, begin, files)
        while t < segments.total:
            n = min(segments.longest, segments.total - t, n)
            if not isinstance(self.every, timedelta):
                n = min(segments.longest, segments.total - t, saved + int(self.every) - t)
            at = time.monotonic()
            state, draws = segments.advance(state, t, n)
            t += n
            for file, values in zip(files, draws):
                file.append(values)
            if isinstance(self.every, timedelta):
                # pieces of about a tenth of the time; the first one is compiled, which takes longer
                n = 2 * n if time.monotonic() - at < self.every.total_seconds() / 10 else max(n // 2, 1)
                due = time.monotonic() - last >= self.every.total_seconds()
            else:
                due = t - saved == self.every
            if due or t == segments.total:
                for file in files:
                    file.sync()
                storage.save(self.folder, storage.Checkpoint(t, files[0].rows, storage.to_host(state)))
                saved, last = t, time.monotonic()
                self._tell(segments, t, first, begin, files)
        return state

    def _tell(self, segments: Segments, t: int, first: int, begin: float, files: list[storage.Growing]) -> None:
        seconds = time.monotonic() - begin
        left = seconds / (t - first) * (segments.total - t) if t > first else float("nan")
        progress = Progress(t, segments.total, files[0].rows, seconds, left)
        logger.info(str(progress))
        if self.hook is not None:
            self.hook(progress)

    def _check_run(self, segments: Segments, rng_key: jax.Array, fields: tuple, names: list[str]) -> None:
        """Writes down which run this is, or compares it with the one that is written down."""
        mcmc, kernel = self.mcmc, self.mcmc.sampler
        potential: ModelPotential = kernel._potential(segments.args, segments.kwargs)
        one = jax.eval_shape(lambda keys: keys if is_key(keys) else keys[0], segments.keys)
        method = mcmc.chain_method if isinstance(mcmc.chain_method, str) else "a function"
        now = {
            **versions(),
            "x64": jax.dtypes.canonicalize_dtype(float) == np.float64,
            "data": fingerprint(segments.args, segments.kwargs),
            "batch_size": kernel.batch_size,
            "steps_per_sample": kernel.steps_per_sample,
            "model": checksum(lambda key: kernel._energies_of_a_start(potential, key), one),
            "kernel": checksum(segments.sample, segments.state),
            "rng_key": _crc([rng_key]),
            "init_params": _crc(jax.tree.leaves(segments.init_params)),
            "num_warmup": mcmc.num_warmup,
            "num_samples": mcmc.num_samples,
            "thinning": mcmc.thinning,
            "num_chains": mcmc.num_chains,
            "chain_method": method if mcmc.num_chains > 1 else "one",
            "extra_fields": list(fields),
            "arrays": names,
        }
        path = self.folder / "run.json"
        if path.exists():
            check_same(json.loads(path.read_text()), now, self.folder)
        else:
            (self.folder / "draws").mkdir(parents=True, exist_ok=True)
            storage.write_json(path, now)


def _names_of(segments: Segments) -> list[str]:
    """Of the collected arrays: a site's own for its draws, else the path of the field."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(segments.draw_tree, segments.draw))

    def name(path: tuple) -> str:
        words = [str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path]
        return words[1] if words[0] == "z" and len(words) == 2 else ":".join(words)

    return [name(path) for path, _ in paths]


def _crc(leaves: Sequence[Any]) -> int:
    return zlib.crc32(b"".join(x.tobytes() for x in storage.to_host(list(leaves))))
