"""
A run that can be continued after its process has ended: the chains advance in segments, and their state is saved after
some of these.

A transition depends only on the state, which includes the next key and the position in the sequence of minibatches. So
a run that continues from a saved state makes the same draws as an uninterrupted one.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
import json
import logging
import os
from pathlib import Path
import time
from typing import Any
from urllib.parse import quote
import zlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.data.arrays import fingerprint
from numpyro_sgmcmc.engine.new_state import energies_of_a_start
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.model.numpyro_internals import put_run
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.runs import storage
from numpyro_sgmcmc.runs.identity import check_same, checksum, versions
from numpyro_sgmcmc.runs.progress import Pace, Progress
from numpyro_sgmcmc.runs.segments import Averages, Carry, Segments
from numpyro_sgmcmc.runs.zarr_arrays import GrowingArray, make_group
from numpyro_sgmcmc.utils.validation import checked_count, is_key

logger = logging.getLogger(__name__.partition(".")[0])


class Checkpointed:
    """
    A run that can be continued after its process has ended. The same lines start it and continue it, and its draws are
    those of ``mcmc.run`` with the same key. With ``chain_method="parallel"`` NumPyro compiles start and loop as one
    program, which may round differently; the draws are then those of an uninterrupted run of ``Checkpointed``.

    The folder contains ``draws``, a Zarr group that ``xarray.open_datatree`` opens for ArviZ even during the run;
    ``state-*.npz``; and ``run.json``, which identifies the run. No file is pickled. Only one process at a time may use
    a folder.

    Afterwards ``mcmc`` is in the same state as after ``mcmc.run``: ``get_samples``, ``last_state``, ``summary(mcmc)``
    and ArviZ work.

    :param MCMC mcmc: with a kernel of this package; any chain method, thinning, number of chains. Its progress bar is
        not shown; every checkpoint is logged at level INFO.
    :param folder: created if it does not exist.
    :param every: transitions between two checkpoints, or a :class:`~datetime.timedelta`. If the process ends, at most
        this much work is lost; with a time, also the current segment, about a tenth of it.
    :param hook: called with a :class:`~numpyro_sgmcmc.runs.progress.Progress` after each checkpoint. An exception
        in it stops the run, which can be continued later.
    :param averages: a function of a draw, a dict of constrained values, that returns any pytree of arrays; ``dict`` for
        the values themselves. Its mean and variance are kept instead of the draws. They are in :attr:`averages` when
        the run has ended, and ``get_samples()`` is empty, so that ``summary`` and other checks of draws have nothing to
        check. The other fields, a few numbers per draw, are still kept.
    :raises TypeError: for another kernel, or an ``every`` of another type.
    :raises ValueError: if ``mcmc.post_warmup_state`` is set, or ``every`` is not above 0.

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
        averages: Callable[[dict[str, Any]], Any] | None = None,
    ):
        if not isinstance(mcmc, MCMC) or not isinstance(mcmc.sampler, SGMCMC):
            kind = type(getattr(mcmc, "sampler", mcmc)).__name__
            raise TypeError(f"Checkpointed(mcmc) needs an MCMC with a kernel of numpyro_sgmcmc, not {kind}.")
        if mcmc.post_warmup_state is not None:
            raise ValueError(
                "Checkpointed(mcmc) starts with the warm-up, but mcmc.post_warmup_state is set. Make a new MCMC; an "
                "interrupted run continues from its folder."
            )
        if not isinstance(every, timedelta):
            checked_count("every", every)
        elif every <= timedelta():
            raise ValueError(f"every={every} must be above 0.")
        if hook is not None and not callable(hook):
            raise TypeError(f"hook={hook!r} must be a function of the progress, or None.")
        if averages is not None and not callable(averages):
            raise TypeError(f"averages={averages!r} must be a function of a draw, or None.")
        self.mcmc, self.folder, self.every, self.hook, self._function = mcmc, Path(folder), every, hook, averages
        self._averages: Averages | None = None

    @property
    def averages(self) -> Averages:
        """
        Mean and variance of the draws, by chain, after the end of the run.

        :raises ValueError: if ``averages`` was not given, or the run has not ended.
        """
        if self._averages is None:
            raise ValueError("there are no averages: give Checkpointed averages=dict, and run it.")
        return self._averages

    def run(
        self, rng_key: jax.Array, *args: Any, extra_fields: Sequence[str] = (), init_params: Any = None, **kwargs: Any
    ) -> None:
        """
        Start the run, or continue it. The arguments are those of :meth:`numpyro.infer.MCMC.run`.

        :raises ValueError: if the folder contains a run with another model, kernel, key, version, other data or other
            numbers, or if none of its checkpoints can be read.
        """
        mcmc = self.mcmc
        keys = random.split(rng_key, mcmc.num_chains) if mcmc.num_chains > 1 and is_key(rng_key) else rng_key
        init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
        fields = tuple(dict.fromkeys(("z", *mcmc.sampler.default_fields, *extra_fields)))
        segments = Segments(mcmc, keys, init_params, fields, args, kwargs, self._function)
        names = _names_of(segments)
        self._check_run(segments, rng_key, fields, names)
        draws = self.folder / "draws"
        files = [GrowingArray(draws / name, *about) for name, about in zip(names, segments.shapes())]
        leaves = jax.tree.leaves(segments.carry)
        checkpoint = storage.load(self.folder, len(leaves), lambda draws: [file.check(draws) for file in files])
        if checkpoint is None:
            carry = segments.begin()
            checkpoint = storage.Checkpoint(0, 0, storage.to_host(carry))
            storage.save(self.folder, checkpoint)
        else:
            carry = storage.to_device(checkpoint.leaves, segments.carry, rng_key)
        for file in files:
            file.open(checkpoint.draws)
        try:
            carry = self._continue(segments, carry, checkpoint.transition, files)
            put_run(mcmc, segments.whole([file.read() for file in files]), carry.state, args, kwargs)
            if self._function is not None:
                self._averages = Averages.from_moments(carry.moments, mcmc.num_chains)
        finally:
            for file in files:
                file.close()

    def _continue(self, segments: Segments, carry: Carry, t: int, files: list[GrowingArray]) -> Carry:
        begin = last = time.monotonic()
        saved, n = t, 1
        pace = Pace(segments, begin, t, carry)
        self._tell(pace, t, carry, files)
        while t < segments.total:
            steps = n if isinstance(self.every, timedelta) else saved + int(self.every) - t
            n = min(steps, segments.longest, segments.total - t)
            started = time.monotonic()
            carry, draws = segments.advance(carry, t, n)
            t += n
            for file, values in zip(files, draws):
                file.append(values)
            if isinstance(self.every, timedelta):
                # segments of about a tenth of the time; the first one takes longer, as it is compiled
                n = 2 * n if time.monotonic() - started < self.every.total_seconds() / 10 else max(n // 2, 1)
                due = time.monotonic() - last >= self.every.total_seconds()
            else:
                due = t - saved == self.every
            if due or t == segments.total:
                for file in files:
                    file.sync()
                storage.save(self.folder, storage.Checkpoint(t, files[0].rows, storage.to_host(carry)))
                saved, last = t, time.monotonic()
                self._tell(pace, t, carry, files)
        return carry

    def _tell(self, pace: Pace, t: int, carry: Carry, files: list[GrowingArray]) -> None:
        progress = pace.progress(t, carry, files[0].rows)
        logger.info(str(progress))
        if self.hook is not None:
            self.hook(progress)

    def _check_run(self, segments: Segments, rng_key: jax.Array, fields: tuple, names: list[str]) -> None:
        """Writes the identity of this run to ``run.json``, or compares it with the one there."""
        mcmc, kernel = self.mcmc, self.mcmc.sampler
        potential: ModelPotential = kernel.potential(segments.args, segments.kwargs)
        key = jax.eval_shape(lambda keys: keys if is_key(keys) else keys[0], segments.keys)
        method = mcmc.chain_method if isinstance(mcmc.chain_method, str) else "a function"
        now = {
            **versions(),
            "x64": jax.dtypes.canonicalize_dtype(float) == np.float64,
            "data": fingerprint(segments.args, segments.kwargs),
            "batch_size": kernel.batch_size,
            "steps_per_sample": kernel.steps_per_sample,
            "model": checksum(lambda key: energies_of_a_start(kernel.chain, potential, key)[1], key),
            "kernel": checksum(segments.sample, segments.carry.state),
            "rng_key": _crc([rng_key]),
            "init_params": _crc(jax.tree.leaves(segments.init_params)),
            "num_warmup": mcmc.num_warmup,
            "num_samples": mcmc.num_samples,
            "thinning": mcmc.thinning,
            "num_chains": mcmc.num_chains,
            "chain_method": method if mcmc.num_chains > 1 else "one",
            "extra_fields": list(fields),
            "averages": self._function and checksum(segments.averaged, segments.carry.state),
            "arrays": names,
        }
        path = self.folder / "run.json"
        if path.exists():
            check_same(json.loads(path.read_text()), now, self.folder)
        else:
            for group in (".", "posterior", "sample_stats"):
                make_group(self.folder / "draws" / group)
            storage.write_json(path, now)


def _names_of(segments: Segments) -> list[str]:
    """Group and name of each collected array: the name of the site for draws, otherwise the path of the field."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(segments.draw_tree, segments.draw))

    def name(path: tuple) -> str:
        words = [str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path]
        group = "posterior" if words[0] == "z" and len(words) == 2 else "sample_stats"
        return f"{group}/{quote(words[1] if group == 'posterior' else ':'.join(words), safe='')}"

    return [name(path) for path, _ in paths]


def _crc(leaves: Sequence[Any]) -> int:
    return zlib.crc32(b"".join(x.tobytes() for x in storage.to_host(list(leaves))))
