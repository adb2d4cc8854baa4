"""The gradient estimators: unbiased at any state, of little noise, remembering what they should and nothing else."""

import logging
import re

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SVRG,
    ControlVariate,
    Minibatch,
    Reshuffled,
    WithoutReplacement,
    WithReplacement,
    gradient_noise,
)
from numpyro_sgmcmc.gradients.full_pass import full_gradient

pytestmark = pytest.mark.usefixtures("x64")

ARGS = (models.X, models.COUNTS)
Z = {"weights": np.array([1.0, 0.5, -0.3])}  # NumPy's: made before x64 is switched on
CENTER = {"weights": np.array([0.3, -0.2, 0.5])}
TABLES = ("row", "batch", "linear")
ESTIMATORS = [
    Minibatch(),
    ControlVariate(CENTER),
    ControlVariate(CENTER, stored="linear"),
    SVRG(update_every=3),
    *(SAGA(per, init) for per in TABLES for init in ("full", "online")),
    SAGA(init="zeros"),
]
SCHEMES = [Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement(), WithReplacement()]


def make(gradient, kernel=SGLD, model=models.logistic, **options):
    return kernel(model, **{"step_size": 1e-3, "batch_size": models.B, "gradient": gradient} | options)


def started(kernel, z=Z, args=ARGS, key=0):
    return kernel.init(random.key(key), 0, z, args, {})


def evaluating(kernel, z=Z, args=ARGS, kwargs=None):
    """State, batches of rows -> the energies and gradients that they give; compiled once."""

    def one(state, rows):
        potential = kernel.potential(args, kwargs or {})
        seen = kernel.gradient.evaluate(potential, z, {"N": rows}, state.gradient_state, random.key(2))
        return seen.energy, seen.gradient["weights"]

    evaluate = jax.jit(jax.vmap(one, (None, 0)))
    return lambda state, batches: evaluate(state, jnp.asarray(batches, jnp.int32))


def looking(kernel, z=Z, args=ARGS):
    """State, batches of rows -> the gradient that each of them gives."""
    evaluate = evaluating(kernel, z, args)
    return lambda state, batches: evaluate(state, batches)[1]


def whole(z=Z, args=ARGS):
    """The gradient over all rows, by hand."""
    return z["weights"] + per_row_gradients(z, args).sum(0)


def committed(kernel, state, rows, accepted):
    """What is remembered after a look at these rows."""

    @jax.jit
    def look(gradient_state, rows):
        potential = kernel.potential(ARGS, {})
        seen = kernel.gradient.evaluate(potential, Z, {"N": rows}, gradient_state, random.key(0))
        return kernel.gradient.commit(gradient_state, seen.update, jnp.array(accepted))

    return look(state.gradient_state, jnp.asarray(rows, jnp.int32))


def per_row_gradients(z, args=ARGS):
    p = jax.nn.sigmoid(args[0] @ z["weights"])
    return (p - args[1])[:, None] * args[0]


def aged(kernel, state=None, args=ARGS, z=Z):
    """A state 17 steps later, elsewhere than where the tables were begun."""
    state = started(kernel, z, args) if state is None else state
    return jax.jit(lambda state: jax.lax.fori_loop(0, 17, lambda _, s: kernel.sample(s, args, {}), state))(state)


# -- unbiased ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ESTIMATORS, ids=lambda g: re.sub(r"\(center=.*?\)\}", "(", str(g)))
@pytest.mark.every(2)
def test_the_mean_over_all_batches_is_the_full_gradient(gradient):
    """
    Exactly, at a fresh state and at states aged under two row schemes: with rows drawn twice among what is remembered,
    and under the others in turn.
    """
    batches = np.arange(models.N).reshape(-1, models.B)
    kernel = make(gradient)
    state, look = started(kernel), looking(kernel)
    np.testing.assert_allclose(look(state, batches).mean(0), whole(), rtol=1e-12)
    for rows in (WithReplacement(), SCHEMES[ESTIMATORS.index(gradient) % 3]):
        aged_state = aged(make(gradient, rows=rows, step_size=3e-2), state)
        np.testing.assert_allclose(look(aged_state, batches).mean(0), whole(), rtol=1e-12)


@pytest.mark.parametrize("gradient", [SVRG(update_every=3), SAGA(), SAGA("batch"), SAGA("linear", "online")], ids=str)
@pytest.mark.every(2)
def test_the_mean_is_exact_where_the_batch_size_does_not_divide(gradient):
    """23 rows in batches of 5: over all cyclic windows, or over the 5 batches of the partition, the last of 3 rows."""
    args = tuple(x[:23] for x in ARGS)
    kernel = make(gradient, batch_size=5, step_size=3e-2)
    state = aged(kernel, started(kernel, args=args), args=args)
    if getattr(kernel.gradient, "per", None) == "batch":
        batches = [np.minimum(np.arange(5) + 5 * j, 22) for j in range(5)]
    else:
        batches = [(np.arange(5) + j) % 23 for j in range(23)]
    np.testing.assert_allclose(looking(kernel, args=args)(state, batches).mean(0), whole(args=args), rtol=1e-12)


def test_the_gradient_of_two_crossed_plates_is_exact():
    """The full pass weighs each plate's last, shorter chunk, and SVRG serves where SAGA cannot."""
    args = (jnp.asarray(models.TABLE),)
    kernel = SGLD(models.crossed, step_size=1e-3, batch_size={"rows": 2, "columns": 6}, gradient=SVRG())
    potential = kernel.potential(args, {})
    z = {"mu": jnp.array(0.3), "scale": jnp.array(-0.2)}
    everything = {"rows": jnp.arange(4), "columns": jnp.arange(models.N)}
    exact = jax.grad(potential.estimate)(z, everything)
    for chunk in (None, 25, 16, 1):  # in one piece; 5 rows at once; 4 rows at once, and all of them in pieces; one row
        found = full_gradient(potential, z, random.key(0), chunk)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, exact)


@pytest.mark.parametrize("gradient", ESTIMATORS, ids=lambda g: re.sub(r"\(center=.*?\)\}", "(", str(g)))
@pytest.mark.every(2)
def test_the_mean_energy_over_all_batches_is_that_of_all_rows(gradient):
    """Exactly: 23 rows in batches of 5, over all cyclic windows, or over the batches of a partition."""
    args = tuple(x[:23] for x in ARGS)
    kernel = make(gradient, batch_size=5)
    whole_energy = kernel.potential(args, {}).estimate(Z, {"N": jnp.arange(23)})
    if getattr(gradient, "per", None) == "batch":
        batches = [np.minimum(np.arange(5) + 5 * j, 22) for j in range(5)]
    else:
        batches = [(np.arange(5) + j) % 23 for j in range(23)]
    energies, _ = evaluating(kernel, args=args)(started(kernel, args=args), batches)
    np.testing.assert_allclose(energies.mean(), whole_energy, rtol=1e-12)


# -- what is remembered --------------------------------------------------------------------------------------------


def test_saga_is_algorithm_1():
    """A step written out by hand from the table: estimate, then the drawn rows of the table are written."""
    kernel = make(SAGA(), rows=WithoutReplacement())
    state = aged(kernel)
    table = state.gradient_state.table["weights"]
    rows, n = np.array([3, 8, 1, 20, 5, 11]), models.B
    new = per_row_gradients(Z)[rows]
    by_hand = Z["weights"] + table.sum(0) + models.N / n * (new - table[rows]).sum(0)
    np.testing.assert_allclose(looking(kernel)(state, [rows])[0], by_hand, rtol=1e-12)
    after, refused = (committed(kernel, state, rows, accepted) for accepted in (True, False))
    np.testing.assert_allclose(after.table["weights"], table.at[rows].set(new), rtol=1e-12)
    np.testing.assert_allclose(after.total["weights"], after.table["weights"].sum(0), rtol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, refused, state.gradient_state)


@pytest.mark.parametrize("per", TABLES)
@pytest.mark.parametrize("rows", [WithoutReplacement(), WithReplacement()], ids=str)
@pytest.mark.every(3)
def test_a_refused_evaluation_leaves_what_is_seen_and_its_count(per, rows):
    kernel = make(SAGA(per, "online"), rows=rows)
    state = started(kernel)
    batch = np.arange(models.B) if per == "batch" else [3, 8, 1, 20, 5, 11]
    refused, after = (committed(kernel, state, batch, accepted) for accepted in (False, True))
    jax.tree.map(np.testing.assert_array_equal, refused, state.gradient_state)
    assert int(after.count) == int(after.seen.sum()) == (1 if per == "batch" else models.B)


@pytest.mark.parametrize("per, init", [("row", "full"), ("row", "online"), ("linear", "zeros")])
@pytest.mark.every(3)
def test_trap_29_a_row_drawn_twice_is_written_once(per, init):
    kernel = make(SAGA(per, init), rows=WithReplacement())
    state = aged(kernel)
    after = committed(kernel, state, [7, 2, 7, 7, 2, 9], True)
    drawn = jnp.array([2, 7, 9])
    table = after.table["weights"] if per == "row" else after.table[:, None] * ARGS[0]
    np.testing.assert_allclose(table[drawn], per_row_gradients(Z)[drawn], rtol=1e-12)
    np.testing.assert_allclose(after.total["weights"], table.sum(0), rtol=1e-10, atol=1e-12)
    if init == "online":
        assert int(after.count) == int(after.seen.sum()) and after.seen.max() == 1


def test_online_unseen_rows_stand_at_the_mean_of_the_seen():
    kernel = make(SAGA(init="online"), rows=Reshuffled())
    state = started(kernel)
    assert int(state.gradient_state.count) == 0
    state = jax.jit(lambda s: kernel.sample(kernel.sample(s, ARGS, {}), ARGS, {}))(state)
    seen = np.flatnonzero(state.gradient_state.seen)
    assert len(seen) == 2 * models.B == int(state.gradient_state.count)
    stand_in = np.array(state.gradient_state.table["weights"])
    stand_in[np.setdiff1d(np.arange(models.N), seen)] = stand_in[seen].mean(0)
    rows = np.array([seen[0], seen[1], *np.setdiff1d(np.arange(models.N), seen)[:4]])
    new = per_row_gradients(Z)[rows]
    by_hand = Z["weights"] + stand_in.sum(0) + models.N / models.B * (new - stand_in[rows]).sum(0)
    np.testing.assert_allclose(looking(kernel)(state, [rows])[0], by_hand, rtol=1e-12)


def test_a_word_of_two_gradients_remembers_the_last():
    kernel = make(SAGA(), kernel=SGHMC, integrator="ABOABA", rows=WithoutReplacement())
    before = started(kernel)
    after = jax.jit(lambda s: kernel.sample(s, ARGS, {}))(before)
    rows = kernel.rows(before.rows_state.rng_key, before.rows_state.t, models.N, models.B)
    # A with h/3 moves z once more after the last kick
    z = {"weights": after.z["weights"] - 1e-3 / 3 * after.momentum["weights"]}
    expected = before.gradient_state.table["weights"].at[rows].set(per_row_gradients(z)[rows])
    np.testing.assert_allclose(after.gradient_state.table["weights"], expected, rtol=1e-10)


@pytest.mark.parametrize("kernel, rows", [(SGHMC, Reshuffled()), (MSGNHT, WithReplacement())])
@pytest.mark.every(2)
def test_the_linear_table_gives_the_chain_of_the_table_of_rows(kernel, rows):
    """Other numbers are remembered, the estimates are the same: the draws agree to rounding."""
    states = [aged(make(SAGA(per), kernel=kernel, rows=rows)) for per in ("row", "linear")]
    np.testing.assert_allclose(states[0].z["weights"], states[1].z["weights"], rtol=1e-9)
    assert states[1].gradient_state.table.shape == (models.N,)


def test_stored_control_variates_are_those_computed_anew():
    states = [aged(make(ControlVariate(CENTER, stored=per))) for per in (None, "row", "linear")]
    for other in states[1:]:
        np.testing.assert_allclose(states[0].z["weights"], other.z["weights"], rtol=1e-9)


@pytest.mark.parametrize("per, init", [("row", "full"), ("row", "online"), ("batch", "full"), ("linear", "full")])
@pytest.mark.every(2)
def test_the_sum_over_the_table_does_not_keep_the_rounding_of_a_far_start(per, init):
    """In float32: what the sum is off by, in standard deviations of the gradient over data of standard deviation 1."""
    with jax.enable_x64(False):
        size, epochs = 2000, 17
        x = 1e5 + random.normal(random.key(0), (size,))
        options = {"step_size": 0.3 / size, "batch_size": 100, "steps_per_sample": epochs * size // 100}
        kernel = SGLD(models.gaussian, gradient=SAGA(per, init), **options)
        state = kernel.init(random.key(0), 0, {"mu": jnp.array(0.0)}, (x,), {})
        after = jax.jit(lambda state, x: kernel.sample(state, (x,), {}))(state, x).gradient_state
    exact = np.asarray(jax.tree.leaves(after.table)[0], np.float64).sum()
    sign = -1 if per == "linear" else 1  # its predictor is x - mu
    assert abs(sign * float(after.total["mu"]) - exact) < 0.01 * np.sqrt(size)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint32])
@pytest.mark.parametrize("per", TABLES)
def test_the_sum_is_taken_anew_after_1_2_4_8_and_every_16_epochs(dtype, per):
    """A sum that is wrong on purpose is mended at these steps, and only at these."""
    kernel = make(SAGA(per))
    state = started(kernel).gradient_state
    wrong = state._replace(total={"weights": jnp.full(models.DIM, 7.0)})

    steps = models.N // models.B

    def total(i):
        return kernel.gradient.begin_step(kernel.potential(ARGS, {}), Z, wrong, i, random.key(0)).total["weights"]

    totals = jax.jit(lambda i: jax.lax.map(total, i))(jnp.arange(64 * steps + 1, dtype=dtype))
    mended = np.flatnonzero((totals != 7.0).all(1))
    assert list(mended) == [steps * epoch for epoch in (1, 2, 4, 8, 16, 32, 48, 64)]
    np.testing.assert_allclose(totals[mended], np.tile(state.total["weights"], (8, 1)), rtol=1e-12)


@pytest.mark.parametrize("m", [None, 1, 3])
def test_svrg_moves_its_anchor_every_m_steps(m):
    kernel = make(SVRG(update_every=m), step_size=1e-2)
    state = started(kernel)
    step = jax.jit(lambda s: kernel.sample(s, ARGS, {}))
    anchors = []
    for _ in range(9):
        z = state.z["weights"]
        state = step(state)
        moved = bool((state.gradient_state.z["weights"] == z).all())
        anchors.append(moved)
        anchor = state.gradient_state
        np.testing.assert_allclose(anchor.gradient["weights"], whole(anchor.z), rtol=1e-12)
    every = m or models.N // models.B
    assert [k for k, moved in enumerate(anchors) if moved] == list(range(0, 9, every))


def cond_predicates(jaxpr, found):
    """Shapes of the predicates of every ``cond`` in a trace."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "cond":
            found.append(eqn.invars[0].aval.shape)
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                cond_predicates(inner, found)
    return found


@pytest.mark.parametrize("owner", ["kernel", "host"])
def test_trap_30_the_full_pass_is_asked_for_once_by_all_chains(owner):
    """A ``cond`` stays one, its predicate a single number, whether the kernel or the host maps over the chains."""
    kernel = make(SVRG())
    keys = random.split(random.key(0), 3)
    z = {"weights": jnp.tile(Z["weights"], (3, 1))}
    state = kernel.init(keys, 0, z, ARGS, {})
    step = lambda s: kernel.sample(s, ARGS, {})  # noqa: E731
    step = jax.vmap(step) if owner == "host" else step
    traced = jax.jit(step).trace(state)
    predicates = cond_predicates(traced.jaxpr.jaxpr, [])
    assert predicates and set(predicates) == {()}
    compiled = traced.lower().compile()
    assert "conditional" in compiled.as_text()
    for _ in range(9):
        state = compiled(state)
        for c in range(3):
            anchor = jax.tree.map(lambda x, c=c: x[c], state.gradient_state)
            np.testing.assert_allclose(anchor.gradient["weights"], whole(anchor.z), rtol=1e-12)


@pytest.mark.slow
def test_svrg_under_a_map_of_the_users_own_over_chains_and_over_data():
    """Everything traced: the full pass closes over data of an outer program, mapped or not."""
    kernel = make(SVRG(update_every=2), steps_per_sample=3)
    state = kernel.init(random.key(0), 0, Z, ARGS, {})
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    sample = lambda state, args: kernel.sample(state, args, {})  # noqa: E731
    one = jax.jit(sample)(state, ARGS)
    over_chains = jax.jit(jax.vmap(sample, (0, None)))(states, ARGS)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), ARGS)
    over_data = jax.jit(jax.vmap(sample))(states, both)
    for several in (over_chains, over_data):
        for k in range(2):
            np.testing.assert_allclose(several.z["weights"][k], one.z["weights"], rtol=1e-6)
            anchors = several.gradient_state.z["weights"][k], one.gradient_state.z["weights"]
            np.testing.assert_allclose(*anchors, rtol=1e-6)


def test_chains_agree_with_single_chains():
    kernel = make(SVRG(update_every=3), steps_per_sample=4)
    keys = random.split(random.key(0), 2)
    z = {"weights": jnp.stack([Z["weights"], CENTER["weights"]])}
    step = jax.jit(lambda s: kernel.sample(s, ARGS, {}))
    together = step(kernel.init(keys, 0, z, ARGS, {}))
    for c in range(2):
        alone = kernel.init(keys[c], 0, jax.tree.map(lambda x, c=c: x[c], z), ARGS, {})
        alone = step(alone)
        np.testing.assert_allclose(together.z["weights"][c], alone.z["weights"], rtol=1e-12)


@pytest.mark.parametrize("per", TABLES)
@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.every(4)
def test_trap_28_a_table_is_written_in_place(per, chains):
    """The compiled loop needs no room for a second table, be it for one chain or for several."""
    X = random.normal(random.key(0), (100_000, models.DIM))
    y = (X[:, 0] > 0).astype(float)
    kernel = make(SAGA(per), batch_size=10, steps_per_sample=50)
    key = random.key(0) if chains is None else random.split(random.key(0), chains)
    state = kernel.init(key, 0, None, (X, y), {})
    table = sum(leaf.nbytes for leaf in jax.tree.leaves(state.gradient_state.table))
    run = jax.jit(lambda state, X, y: kernel.sample(state, (X, y), {}), donate_argnums=0)
    spare = run.lower(state, X, y).compile().memory_analysis().temp_size_in_bytes
    assert spare < 0.5 * table, f"{spare} bytes beside a table of {table}"


def test_a_refused_step_writes_nothing():
    x = jnp.asarray(ARGS[0]).at[5].set(jnp.nan)
    kernel = make(SAGA(init="zeros"), rows=WithoutReplacement())
    state = kernel.init(random.key(1), 0, Z, ARGS, {})  # the start would refuse the other data
    step = jax.jit(lambda s: kernel.sample(s, (x, ARGS[1]), {}))
    refused = 0
    for _ in range(24):
        rows = kernel.rows(state.rows_state.rng_key, state.rows_state.t, models.N, models.B)
        old, state = state, step(state)
        if 5 in rows:
            refused += 1
            after, before = state.gradient_state, old.gradient_state
            np.testing.assert_array_equal(after.table["weights"], before.table["weights"])
            np.testing.assert_allclose(after.total["weights"], before.total["weights"], rtol=1e-12)  # taken anew
    assert 0 < refused < 24
    assert np.isfinite(state.gradient_state.table["weights"]).all()


def test_rows_that_are_not_finite_do_not_spoil_a_sum_of_slopes():
    """Their slopes stay zero, but zero times NaN would be none."""
    x = jnp.asarray(ARGS[0]).at[5].set(jnp.nan)
    kernel = make(SAGA("linear", init="zeros"), rows=WithoutReplacement(), steps_per_sample=12)
    state = jax.jit(lambda s: kernel.sample(s, (x, ARGS[1]), {}))(kernel.init(random.key(1), 0, Z, ARGS, {}))
    assert np.isfinite(state.gradient_state.total["weights"]).all()


# -- randomised models ---------------------------------------------------------------------------------------------


def randomised(x, y):
    """The noise of each evaluation is the same at every z."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([models.DIM]).to_event(1))
    numpyro.factor("noise", 100 * weights @ random.normal(numpyro.prng_key(), (models.DIM,)))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


@pytest.mark.parametrize("gradient", [ControlVariate(CENTER), SVRG()])
def test_one_key_serves_both_gradients_so_that_a_models_own_noise_cancels(gradient):
    kernel = make(gradient, model=randomised)
    state = started(kernel)
    variance = gradient_noise(kernel, state, *ARGS).variance["weights"]
    plain = make(Minibatch(), model=randomised)
    assert (gradient_noise(plain, started(plain), *ARGS).variance["weights"] > 5_000).all()
    assert (variance < 100).all()


def test_saga_refuses_a_randomised_model():
    with pytest.raises(ValueError, match="draws its own keys.*SVRG"):
        started(make(SAGA(), model=randomised))


# -- refusals ------------------------------------------------------------------------------------------------------


def unknown_scale(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([models.DIM]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(x[rows] @ weights, scale), obs=y[rows])


@pytest.mark.parametrize(
    "make_gradient, message",
    [
        (lambda: SVRG(update_every=0), "update_every.*=0 must be at least 1"),
        (lambda: SAGA("rows"), "SAGA\\(per\\)='rows' must be one of 'row', 'batch', 'linear'"),
        (lambda: SAGA(init="none"), "SAGA\\(init\\)='none' must be one of 'full', 'online', 'zeros'"),
        (lambda: SAGA(memory=0), "SAGA\\(memory\\)=0 must be a share"),
        (lambda: SAGA(chunk_size=0), "SAGA\\(chunk_size\\)=0 must be at least 1"),
        (lambda: SVRG(chunk_size=0), "SVRG\\(chunk_size\\)=0 must be at least 1"),
        (lambda: SAGA(predictor="eta"), "SAGA\\(predictor\\) is used only with per='linear', not with per='row'"),
        (lambda: ControlVariate(CENTER, stored="all"), "ControlVariate\\(stored\\)='all' must be one of"),
        (lambda: ControlVariate(CENTER, chunk_size=0), "ControlVariate\\(chunk_size\\)=0 must be at least 1"),
        (lambda: ControlVariate(CENTER, memory=2), "ControlVariate\\(memory\\)=2 must be a share"),
        (
            lambda: ControlVariate(CENTER, predictor="eta"),
            "ControlVariate\\(predictor\\) is used only with stored='linear', not with stored=None",
        ),
    ],
)
def test_an_argument_is_judged_at_construction(make_gradient, message):
    with pytest.raises(ValueError, match=message):
        make_gradient()


def test_a_predictor_is_a_name_or_a_function():
    with pytest.raises(TypeError, match="SAGA\\(predictor\\)=3 must be the name of a site, or a function"):
        SAGA("linear", predictor=3)


def test_update_every_is_a_whole_number():
    with pytest.raises(TypeError, match="update_every.*=2.5 must be an integer"):
        SVRG(update_every=2.5)


@pytest.mark.parametrize(
    "gradient, options, message",
    [
        (ControlVariate({"w": 0.0}), {}, "center\\) names 'w', but the latent sites of the model are 'weights'"),
        (ControlVariate({}), {}, "no entry for the latent site 'weights'"),
        (
            ControlVariate({"weights": np.zeros(2)}),
            {},
            r"\['weights'\] has shape \(2,\), but the unconstrained site has",
        ),
        (ControlVariate(np.zeros(3)), {}, "must be a dict of unconstrained values"),
        (ControlVariate({"weights": np.zeros(2)}, stored="row"), {}, r"\['weights'\] has shape \(2,\)"),
        (SAGA(), {"batch_size": None}, "no plate is minibatched. Give the kernel a batch_size"),
        (SVRG(), {"batch_size": None}, "no plate is minibatched"),
        (ControlVariate(CENTER), {"batch_size": None}, "no plate is minibatched"),
        (
            ControlVariate(CENTER, "row"),
            {"batch_size": None},
            "gradient=ControlVariate\\(...\\).*no plate is minibatched",
        ),
        (
            SAGA("linear"),
            {"model": unknown_scale},
            "SAGA\\(per='linear'\\) needs .* only through a linear predictor.*'scale'.*predictor=.*'batch' or 'row'",
        ),
        (
            ControlVariate(CENTER | {"scale": 0.0}, "linear"),
            {"model": unknown_scale},
            "ControlVariate\\(stored='linear'\\) needs .* only through a linear predictor.*'scale'.*'batch' or 'row'",
        ),
        (
            ControlVariate(CENTER, "row"),
            {"model": randomised},
            "ControlVariate\\(stored='row'\\) does not work with .* draws its own keys.*ControlVariate\\(center\\)",
        ),
        (
            ControlVariate(CENTER, "row", memory=1e-12),
            {},
            "table of ControlVariate\\(stored='row'\\) .* Use stored='batch' .*, or a larger share memory=",
        ),
    ],
    ids=lambda value: str(value)[:25],
)
def test_what_does_not_fit_the_model(gradient, options, message):
    with pytest.raises(ValueError, match=message):
        started(make(gradient, **options), z=None)


@pytest.mark.parametrize(
    "gradient, name",
    [(SAGA(), "SAGA(per='row')"), (ControlVariate({"mu": 0, "scale": 0}, "row"), "ControlVariate(stored='row')")],
    ids=["SAGA", "ControlVariate"],
)
def test_a_table_refuses_two_minibatched_plates(gradient, name):
    kernel = SGLD(models.crossed, step_size=1e-3, batch_size={"rows": 2, "columns": 6}, gradient=gradient)
    message = f"{re.escape(name)} stores the gradients of one plate, but 'rows' and 'columns' are all minibatched.*SVRG"
    with pytest.raises(ValueError, match=message):
        kernel.init(random.key(0), 0, None, (jnp.asarray(models.TABLE),), {})


def test_a_table_is_announced_before_it_is_taken(caplog, monkeypatch):
    monkeypatch.setattr("numpyro_sgmcmc.utils.memory.limit", lambda: 10_000)
    keys = random.split(random.key(0), 2)
    size = 2 * models.N * models.DIM * 8
    with caplog.at_level(logging.INFO, logger="numpyro_sgmcmc"):
        make(SAGA()).init(keys, 0, None, ARGS, {})
    assert f"the table of SAGA(per='row') for 2 chains takes {size} bytes" in caplog.text
    with pytest.raises(
        ValueError, match=f"would take {size} bytes.*more than the share 0.1 of all memory, 10000.*per='batch'"
    ):
        make(SAGA(memory=0.1)).init(keys, 0, None, ARGS, {})
    make(SAGA("linear", memory=0.1)).init(keys, 0, None, ARGS, {})


# -- Gibbs ---------------------------------------------------------------------------------------------------------


def conditioned(model):
    """As NumPyro's Gibbs wraps the model of a block."""

    def wrapped(*args, _gibbs_sites=None, **kwargs):
        with numpyro.handlers.condition(data=_gibbs_sites or {}):
            return model(*args, **kwargs)

    return wrapped


def warped(x, y):
    """The design depends on ``rate``, which a sibling moves."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([models.DIM]).to_event(1))
    rate = numpyro.sample("rate", dist.Normal(1, 1))
    with numpyro.plate("N", len(x)) as rows:
        eta = numpyro.deterministic("eta", jnp.sin(rate * x[rows]) @ weights)
        numpyro.sample("obs", dist.Bernoulli(logits=eta), obs=y[rows])


def by_hand(values, rows):
    return jnp.sin(values["rate"] * jnp.asarray(ARGS[0])[rows]) @ values["weights"]


@pytest.mark.parametrize(
    "gradient",
    [
        *(SAGA(per, init) for per in TABLES for init in ("full", "online")),
        *(SAGA("linear", predictor=predictor) for predictor in ("eta", by_hand)),
        *(ControlVariate(CENTER, per) for per in (None, *TABLES)),
        ControlVariate(CENTER, "linear", predictor="eta"),
    ],
    ids=lambda g: re.sub(r"\(center=.*?\)\}", "(", str(g)).partition("<")[0],
)
@pytest.mark.slow
def test_tables_follow_a_design_that_changes(gradient):
    """The mean over all batches is the full gradient, for a table that was written under other values."""
    kernel = make(gradient, model=warped, step_size=3e-2).wrap_model(conditioned)
    given = lambda rate: {"_gibbs_sites": {"rate": rate}}  # noqa: E731

    @jax.jit
    def refreshed(state, rate):
        state = kernel.refresh(state, ARGS, given(rate))
        _, gradients = evaluating(kernel, kwargs=given(rate))(state, np.arange(models.N).reshape(-1, models.B))
        return state, gradients.mean(0), full_gradient(kernel.potential(ARGS, given(rate)), Z, random.key(0))

    @jax.jit
    def moved(state, rate):
        return jax.lax.fori_loop(0, 6, lambda _, s: kernel.sample(s, ARGS, given(rate)), state)

    state = kernel.init(random.key(0), 0, CENTER, ARGS, given(jnp.array(0.5)))
    for rate in (0.5, 2.0, -1.0):
        state, mean, exact = refreshed(state, rate)
        np.testing.assert_allclose(mean, exact["weights"], rtol=1e-11)
        state = moved(state, rate)


@pytest.mark.parametrize("gradient", [ControlVariate({"tau": 0.2}), SVRG(), ControlVariate({"tau": 0.2}, "row")])
@pytest.mark.every(3)
def test_anchors_follow_the_values_that_a_gibbs_sampler_conditions_on(gradient):
    """After a refresh the mean over all batches is the full gradient under the new values, not under the old."""
    kernel = SGLD(models.precision, step_size=1e-3, batch_size=models.B, gradient=gradient)
    x = jnp.asarray(models.ROWS)
    given = lambda mu: ((x,), {"_gibbs_sites": {"mu": jnp.array(mu)}})  # noqa: E731
    kernel = kernel.wrap_model(conditioned)
    state = kernel.init(random.key(0), 0, None, *given(0.0))
    for mu in (0.0, 2.0):
        state = jax.jit(lambda s: kernel.refresh(s, *given(mu)))(state)  # noqa: B023
        potential = kernel.potential(*given(mu))
        z = {"tau": jnp.array(0.1)}
        batches = jnp.arange(models.N).reshape(-1, models.B)
        one = lambda r: kernel.gradient.evaluate(potential, z, {"N": r}, state.gradient_state, random.key(0)).gradient  # noqa: B023, E731
        gradients, exact = jax.jit(lambda: (jax.vmap(one)(batches), full_gradient(potential, z, random.key(0))))()  # noqa: B023
        np.testing.assert_allclose(gradients["tau"].mean(), exact["tau"], rtol=1e-12)
