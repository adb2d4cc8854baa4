"""
What exists only because of what XLA makes of the plain form. ``tests/benchmarks/workarounds.py`` measures each piece
beside the plain form, except ``constants`` and ``once``, which are about compilation; docs/maintainers/measurements.md
has the numbers, and larger cases.

================================ ====================== ======================================================
piece                            needed by              remove it when
================================ ====================== ======================================================
``box_muller``                   jax 0.10-0.12, CPU     ``jax.random.normal`` is as fast
its ``cond``, always true        jax 0.10, CPU          jax 0.10 is no longer supported: a barrier does it
``loop``: the sort               jax 0.12, CPU          XLA limits the size of a loop that becomes one kernel
``in_place.read_at``: the cond   jax 0.10-0.12, CPU     jax 0.10 is no longer supported: a barrier does it
``in_place.add_at``: one by one  jax 0.12, CPU          a scatter of few rows is as fast
``lockstep``                     all                    ``vmap`` keeps a ``cond`` of which all chains need a branch
``constants``                    jax 0.10-0.12          JAX passes arrays that a program closes over as arguments
``once``                         jax 0.12, CPU          XLA computes a value once; jax 0.10 drops the barrier
================================ ====================== ======================================================
"""
