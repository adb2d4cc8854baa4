"""Models inside of NumPyro's handlers have the energy of the model that one would write instead, or an error."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.reparam import LocScaleReparam
import pytest

from numpyro_sgmcmc import SGLD, LocalHMC, OnDisk

N = 30
rng = np.random.default_rng(0)
X, Y, W = rng.normal(size=(3, N)).astype(np.float32)
W = W**2 + 1
ROWS = jnp.array([3, 28, 7, 11])


def written(y=Y, w=None, s=None, b=None, fresh_b=False, prior=None, mask=True):
    """The model without handlers: ``y``, ``w`` and ``mask`` are indexed in its plate."""

    def model():
        a = numpyro.sample("a", dist.Normal(0, 3))
        slope = numpyro.sample("b", dist.Normal(a, 2)) if b is None or fresh_b else None
        slope = slope if b is None else b
        if b is not None and not fresh_b:
            numpyro.factor("held", dist.Normal(a, 2).log_prob(b))
        sd = 1.5 if s is None else s
        if prior is not None:
            sd = numpyro.sample("s", prior)
        with numpyro.plate("rows", N) as rows:
            with handlers.scale(scale=1.0 if w is None else jnp.asarray(w)[rows]), handlers.mask(mask=mask):
                numpyro.sample("y", dist.Normal(a + slope * jnp.asarray(X)[rows], sd), obs=jnp.asarray(y)[rows])

    return model


def model(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 3))
    b = numpyro.sample("b", dist.Normal(a, 2))
    s = numpyro.param("s", 1.5, constraint=dist.constraints.positive)
    with numpyro.plate("rows", len(x)) as rows:
        mean = numpyro.deterministic("mean", a + b * x[rows])
        numpyro.sample("y", dist.Normal(mean, s), obs=None if y is None else y[rows])


def potential(model, *args, batch_size=4, **options):
    return SGLD(model, step_size=1e-3, batch_size=batch_size, **options).potential(args, {})


def energy(model, *args, prefix=""):
    found = potential(model, *args)
    z = {f"{prefix}{name}": jnp.float32(value) for name, value in {"a": 0.3, "b": -0.7, "s": 0.2}.items()}
    return found.estimate({name: z[name] for name in found.prototype}, {f"{prefix}rows": ROWS})


TRACE = handlers.trace(handlers.seed(model, 0)).get_trace(jnp.asarray(X), jnp.asarray(Y))
PRIOR = dist.LogNormal(0, 1)


@pytest.mark.parametrize(
    "wrapped, args, instead",
    [
        (handlers.condition(model, {"y": Y}), (X,), written()),
        (handlers.condition(model, {"y": jnp.asarray(Y)}), (X,), written()),
        (handlers.condition(model, condition_fn=lambda site: {"y": Y}.get(site["name"])), (X,), written()),
        (handlers.condition(model, {"y": W}), (X, Y), written(W)),  # in place of obs=
        (handlers.condition(model, {"b": 0.4}), (X, Y), written(b=0.4)),
        (handlers.substitute(model, {"s": 0.8}), (X, Y), written(s=0.8)),
        (handlers.do(model, {"b": 0.4}), (X, Y), written(b=0.4, fresh_b=True)),
        (handlers.lift(model, {"s": PRIOR}), (X, Y), written(prior=PRIOR)),
        (handlers.seed(model, 0), (X, Y), written()),
        (handlers.mask(model, mask=True), (X, Y), written()),
        (handlers.trace(model), (X, Y), written()),
        (handlers.infer_config(model, lambda site: {}), (X, Y), written()),
        (handlers.block(model, hide=["mean"]), (X, Y), written()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, numpyro.primitives.Messenger) else "",
)
def test_the_model_that_one_would_write_instead(wrapped, args, instead):
    np.testing.assert_allclose(energy(wrapped, *args), energy(instead), rtol=1e-6)


def test_scope():
    """It renames the plate, too; rows on disk are still those of the plate."""
    scoped = handlers.scope(handlers.condition(model, {"y": Y}), prefix="p")
    np.testing.assert_allclose(energy(scoped, X, prefix="p/"), energy(written()), rtol=1e-6)


def test_scope_on_disk(tmp_path):
    def subsampled(y):
        a = numpyro.sample("a", dist.Normal(0, 3))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(a, 1), obs=numpyro.subsample(y, event_dim=0))

    np.save(tmp_path / "y.npy", Y)
    scoped = handlers.scope(subsampled, prefix="p")
    on_disk = energy(scoped, OnDisk(tmp_path / "y.npy"), prefix="p/")
    np.testing.assert_allclose(on_disk, energy(subsampled, Y), rtol=1e-6)


def test_scale():
    np.testing.assert_allclose(energy(handlers.scale(model, scale=2.0), X, Y), 2 * energy(model, X, Y), rtol=1e-6)


def test_reparam():
    def non_centred(x, y):
        a = numpyro.sample("a", dist.Normal(0, 3))
        b = a + 2 * numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("rows", N) as rows:
            numpyro.sample("y", dist.Normal(a + b * x[rows], 1.5), obs=y[rows])

    z = {"a": jnp.float32(0.3), "b_decentered": jnp.float32(-0.7)}
    wrapped = potential(handlers.reparam(model, config={"b": LocScaleReparam(0)}), X, Y)
    np.testing.assert_allclose(wrapped.estimate(z, {"rows": ROWS}), energy(non_centred, X, Y), rtol=1e-6)


def test_a_hidden_site_is_drawn_from_its_prior():
    hidden = potential(handlers.block(model, hide=["b"]), X, Y)
    assert list(hidden.prototype) == ["a"] and hidden.randomised
    first, second = (hidden.estimate({"a": jnp.float32(0.3)}, {"rows": ROWS}, random.key(k)) for k in (0, 1))
    assert first != second


def rows_and_columns(y=None):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("columns", 5, dim=-1) as columns, numpyro.plate("rows", N, dim=-2) as rows:
        obs = None if y is None else y[rows[:, None], columns]
        numpyro.sample("y", dist.Normal(a, 1).expand([2]).to_event(1), obs=obs)


@pytest.mark.parametrize("sizes", [{"rows": 4}, {"columns": 2}, {"rows": 4, "columns": 2}])
def test_condition_with_events_and_two_plates(sizes):
    y = rng.normal(size=(N, 5, 2)).astype(np.float32)
    rows = {"rows": ROWS, "columns": jnp.array([4, 1])}
    rows, z = {name: rows[name] for name in sizes}, {"a": jnp.float32(0.3)}
    found = potential(handlers.condition(rows_and_columns, {"y": y}), batch_size=sizes).estimate(z, rows)
    expected = potential(rows_and_columns, y, batch_size=sizes).estimate(z, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def labelled(y=None):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("rows", N) as rows:
        k = numpyro.sample("k", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(a * k, 1), obs=None if y is None else y[rows])


def test_condition_with_a_site_summed_out():
    np.testing.assert_allclose(energy(handlers.condition(labelled, {"y": Y})), energy(labelled, Y), rtol=1e-6)


@pytest.mark.parametrize(
    "wrapped, args, message",
    [
        (
            handlers.substitute(model, {"b": 0.4}),
            (X, Y),
            "substitute or replay gives latent site 'b' a value.*condition",
        ),
        (handlers.substitute(model, {"y": Y}), (X,), "gives latent site 'y' a value.*use numpyro.handlers.condition"),
        (handlers.replay(model, TRACE), (X, Y), "gives latent site 'a' a value.*init_to_value"),
        (
            handlers.substitute(model, {"mean": X}),
            (X, Y),
            "handlers.substitute around the model has values of all rows",
        ),
        (handlers.mask(model, mask=X > 0), (X, Y), "handlers.mask around the model has values of all rows"),
        (handlers.scale(model, scale=W), (X, Y), "handlers.scale around the model has values of all rows"),
        (handlers.do(model, {"y": Y}), (X, Y), "^numpyro.handlers.do changes site 'y' in a minibatched plate"),
        (handlers.block(model, hide=["rows"]), (X, Y), "the model has no plate to take a minibatch from"),
        (handlers.block(model), (X, Y), "no latent sample site"),
        (handlers.uncondition(model), (X, Y), "needs a plate with observed sites"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, numpyro.primitives.Messenger) else "",
)
def test_a_handler_that_would_be_wrong(wrapped, args, message):
    with pytest.raises(ValueError, match=message):
        energy(wrapped, *args)


@pytest.mark.parametrize("wrapped", [handlers.scale(model, scale=W), handlers.mask(model, mask=X > 0)])
def test_values_of_all_rows_around_latents_without_a_plate(wrapped):
    """With all rows NumPyro counts the prior once for each row, without an error."""
    with pytest.raises(ValueError, match="^latent site 'a' is outside of the plate.*use it in the plate, on x"):
        potential(wrapped, X, Y, batch_size={})


def test_an_error_under_a_handler_with_values_of_all_rows():
    def of_vector(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)) as rows:
            numpyro.sample("y", dist.Normal(jnp.stack([x, x], 1)[rows] @ w, 1), obs=y[rows])

    with pytest.raises(TypeError) as caught:
        potential(handlers.mask(of_vector, mask=X > 0), jnp.asarray(X), Y)
    assert any("handlers.mask around the model has values of all rows" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("n", [1, 4])
def test_weights_that_are_not_indexed(n):
    def weighted(y, w):
        a = numpyro.sample("a", dist.Normal(0, 3))
        with numpyro.plate("rows", len(y)), handlers.scale(scale=jnp.asarray(w)):
            numpyro.sample("y", dist.Normal(a, 1), obs=numpyro.subsample(y, event_dim=0))

    with pytest.raises(ValueError, match="site 'y'"):
        potential(weighted, Y, W, batch_size=n)


# -- obs_mask= -----------------------------------------------------------------------------------------------------


def observed(x, y, known):
    a, b = numpyro.sample("a", dist.Normal(0, 3)), numpyro.sample("b", dist.Normal(0, 3))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("y", dist.Normal(a + b * x[rows], 1.5), obs=y[rows], obs_mask=known[rows])


def masked(x, y, known):
    a, b = numpyro.sample("a", dist.Normal(0, 3)), numpyro.sample("b", dist.Normal(0, 3))
    with numpyro.plate("rows", len(x)) as rows, handlers.mask(mask=known[rows]):
        numpyro.sample("y", dist.Normal(a + b * x[rows], 1.5), obs=y[rows])


def with_missing_x(x, y, known):
    b = numpyro.sample("b", dist.Normal(0, 3))
    with numpyro.plate("rows", len(x)) as rows:
        x = numpyro.sample("x", dist.Normal(0, 1), obs=x[rows], obs_mask=known[rows])
        numpyro.deterministic("twice", 2 * x)
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y[rows])


KNOWN = X > -0.3


def test_missing_values_are_left_out():
    np.testing.assert_allclose(energy(observed, X, Y, KNOWN), energy(masked, X, Y, KNOWN), rtol=1e-6)


@pytest.mark.parametrize("n", [4, {}])
def test_missing_values_of_a_discrete_site(n):
    def labels(y, known):
        a = numpyro.sample("a", dist.Normal(0, 3))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=a), obs=y[rows], obs_mask=known[rows])

    found = potential(labels, (Y > 0).astype(np.float32), KNOWN, batch_size=n)
    assert list(found.prototype) == ["a"]


def test_a_mask_that_is_not_indexed_is_told_by_the_name_of_its_site():
    def whole(x, y, known):
        a = numpyro.sample("a", dist.Normal(0, 3))
        with numpyro.plate("rows", len(x)) as rows:
            numpyro.sample("y", dist.Normal(a, 1), obs=y[rows], obs_mask=known)

    with pytest.raises(ValueError, match="fails at site 'y' when plate 'rows'"):
        potential(whole, X, Y, KNOWN)


def test_a_model_whose_rows_are_summed_up_by_a_handler():
    with pytest.raises(ValueError, match="handlers.collapse around the model"):
        potential(handlers.infer_config(handlers.collapse(masked), config_fn=lambda site: {}), X, Y, KNOWN)


def test_missing_values_that_are_used():
    with pytest.raises(ValueError, match="site 'y' depends on the missing values of site 'x', which obs_mask= marks"):
        potential(with_missing_x, X, Y, KNOWN)
    assert list(potential(with_missing_x, X, Y, KNOWN, local=LocalHMC(step_size=0.3)).prototype) == ["b"]


def test_missing_values_are_no_draws():
    kernel = SGLD(observed, step_size=1e-3, batch_size={})
    with pytest.warns(UserWarning, match="deterministic site 'y' depends on missing values.*not collected"):
        kernel.init(random.key(0), 0, None, (X, Y, KNOWN), {})
    assert kernel.potential((X, Y, KNOWN), {}).constrain({"a": 0.0, "b": 0.0}).keys() == {"a", "b"}


def test_missing_values_are_predicted():
    draws, args = {"a": jnp.zeros(50), "b": jnp.ones(50)}, tuple(map(jnp.asarray, (X, Y, KNOWN)))
    whole = SGLD(observed, step_size=1e-3).model
    y = Predictive(whole, draws)(random.key(0), *args)["y"]
    assert (y[:, KNOWN] == Y[KNOWN]).all() and (y[:, ~KNOWN].std(0) > 0.5).all()
    density = log_likelihood(whole, draws, *args)["y_observed"]
    assert (density[:, ~KNOWN] == 0).all() and jax.numpy.isfinite(density).all() and (density[:, KNOWN] != 0).all()


def test_the_values_of_a_scan_in_reverse_are_in_the_order_of_its_elements():
    """NumPyro counts the steps as they are run, and stacks what they return the other way round."""

    def walk():
        def transition(after, drift):
            return (a := numpyro.sample("a", dist.LogNormal(jnp.log(after) + drift, 0.5))), a

        scan(transition, 1.0, jnp.arange(4.0), reverse=True)

    a = jnp.array([1.3, 0.4, 2.5, 0.8])
    of_walk = potential(walk, batch_size={})
    z = of_walk.unconstrain({"a": a})
    np.testing.assert_allclose(of_walk.constrain(z)["a"], a, rtol=1e-6)
    after = jnp.array([0.4, 2.5, 0.8, 1.0])
    density = dist.LogNormal(jnp.log(after) + jnp.arange(4), 0.5).log_prob(a) + jnp.log(a)
    np.testing.assert_allclose(of_walk.estimate(z, {}), -density.sum(), rtol=1e-5)
