"""Words: their grammar, what they cost, and that chance and gradient reach the letters they should."""

from jax import random
import jax.numpy as jnp
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, SGNHT, Reshuffled, Splitting
from numpyro_sgmcmc.dynamics.nose_hoover import NoseHoover
from numpyro_sgmcmc.dynamics.splitting import named
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.types import Evaluation, Phase


def model():
    raise AssertionError("a word is checked before the model is run")


@pytest.mark.parametrize(
    "kernel, words",
    [
        (SGLD, {"euler": "E"}),
        (SGHMC, {"euler": "EA", "ssi": "AFBNFA", "NOGIN": "ABGBA"}),
        (SGNHT, {"euler": "AED", "ssi": "ADFBNFDA"}),
        (MSGNHT, {"euler": "AED", "ssi": "ADFBNFDA"}),
    ],
)
def test_the_papers_names(kernel, words):
    for name, word in words.items():
        assert kernel(model, step_size=0.1, integrator=name).integrator.word == word


@pytest.mark.parametrize("kernel, word", [(SGLD, "E"), (SGHMC, "ABOBA"), (SGNHT, "ADBOBDA"), (MSGNHT, "ADBOBDA")])
def test_the_default_words(kernel, word):
    assert kernel(model, step_size=0.1).integrator.word == word


def test_the_default_words_of_self_tuned_kernels():
    assert SGHMC(model).integrator.word == "BAGAB"
    assert SGHMC(model, rows=Reshuffled()).integrator.word == "BAOAB"


@pytest.mark.parametrize(
    "word, gradients, carries",
    [
        ("EA", 1, False),
        ("AFBNFA", 1, False),
        ("ABOBA", 1, False),
        ("ABGBA", 1, False),
        ("BAOA", 1, False),
        ("BAOAB", 1, True),
        ("BAGAB", 1, True),
        ("OBABO", 1, True),
        ("OABAO", 1, False),
        ("BADODAB", 1, True),
        ("ADBOBDA", 1, False),
        ("BABOBAB", 2, True),
    ],
)
def test_gradients_a_step(word, gradients, carries):
    splitting = Splitting(word)
    assert (splitting.gradients_per_step, splitting.carries_gradient) == (gradients, carries)

    # the same, counted: three steps from a gradient that init has left
    calls = []

    def gradient_fn(z):
        calls.append(z)
        return Evaluation(jnp.zeros(()), z, ())

    zero = jnp.ones(2)
    dynamics = NoseHoover(1.0) if "D" in word else Underdamped(1.0)
    phase = Phase(zero, zero, jnp.ones(()), noise_variance=zero)
    gradient = zero if carries else ()
    for _ in range(3):
        phase, gradient, _ = splitting.step(dynamics, phase, gradient, jnp.asarray(0.1), gradient_fn, random.key(0))
    assert len(calls) == 3 * gradients


@pytest.mark.parametrize(
    "kernel, word, complaint",
    [
        (SGLD, "ABOBA", "no flow 'A'"),
        (SGLD, "EE", "only once"),
        (SGHMC, "ADBOBDA", "no flow 'D'"),
        (SGHMC, "ABXBA", "no flow 'X'"),
        (SGHMC, "Euler", "no flow 'u'"),
        (SGHMC, "BOB", "drift 'A' is missing"),
        (SGHMC, "AOA", "kick 'B' is missing"),
        (SGHMC, "ABA", "'F' is missing"),
        (SGHMC, "AFBA", "'N' is missing"),
        (SGHMC, "ABNA", "'F' is missing"),
        (SGHMC, "ABOFA", "'O' contains 'F'"),
        (SGHMC, "ABONA", "'O' contains 'N'"),
        (SGHMC, "AEB", "'E' contains 'B'"),
        (SGHMC, "EAF", "'E' contains 'F'"),
        (SGHMC, "EAN", "'E' contains 'N'"),
        (SGHMC, "EAO", "'E' contains 'O'"),
        (SGHMC, "EAE", "only once"),
        (SGHMC, "ABGFBA", "'G' contains 'F'"),
        (SGHMC, "AOBGBA", "'O' contains 'G'"),
        (SGHMC, "ABGOBA", "'G' contains 'O'"),
        (SGHMC, "EAG", "'E' contains 'G'"),
        (SGHMC, "BAGA", "'G' is correct only in 'BGB' or 'BAGAB'"),
        (SGHMC, "BAGABA", "'G' is correct only in 'BGB' or 'BAGAB'"),
        (SGHMC, "ABGBAB", "'G' is correct only in 'BGB'"),
        (SGHMC, "ABGBGBA", "'G' is correct only in 'BGB'"),
        (SGNHT, "NOGIN", "NoseHoover: it has no flow 'G'"),
        (MSGNHT, "ADBGBDA", "NoseHoover: it has no flow 'G'"),
        (SGNHT, "ABOBA", "thermostat 'D' is missing"),
        (MSGNHT, "EA", "thermostat 'D' is missing"),
    ],
)
def test_a_refused_word_names_the_letter(kernel, word, complaint):
    with pytest.raises(ValueError, match=complaint):
        kernel(model, step_size=0.1, integrator=word)


@pytest.mark.parametrize("integrator", ["", 3])
def test_not_a_word(integrator):
    with pytest.raises(ValueError, match="must be a name"):
        SGHMC(model, step_size=0.1, integrator=integrator)


def test_a_splitting_serves_as_well():
    assert named(Splitting("BAOAB"), Underdamped(1.0)).word == "BAOAB"


def test_each_letter_gets_its_share_of_the_step():
    """Free flight: however often A occurs, the position moves by h p."""
    z, p = jnp.zeros(()), jnp.asarray(2.0)
    flat = lambda z: Evaluation(jnp.zeros(()), jnp.zeros(()), ())  # noqa: E731
    for word in ("ABOA", "BAAAO", "AABAOAA"):
        phase, *_ = Splitting(word).step(Underdamped(0.0), Phase(z, p, ()), (), jnp.asarray(0.1), flat, random.key(0))
        assert float(phase.z) == pytest.approx(0.2)


def test_noisy_letters_draw_independently():
    """With D huge, O replaces the momentum by its noise: two of them in a step must not be the same."""
    kicks = []

    class Spy(Underdamped):
        def O(self, phase, h, noise):  # noqa: E743
            kicks.append(noise)
            return super().O(phase, h, noise)

    flat = lambda z: Evaluation(jnp.zeros(()), jnp.zeros(()), ())  # noqa: E731
    zero = jnp.zeros(())
    Splitting("OBABO").step(Spy(1.0), Phase(zero, zero, ()), zero, jnp.asarray(0.1), flat, random.key(0))
    assert len(kicks) == 2 and kicks[0] != kicks[1]
