"""
Faults planted one at a time in a copy of the package, and the tests of laws run on it: ``make mutations``, some twenty
minutes.

Every fault must fail at least one test, and every test of a law must fail under at least one fault: one that cannot
fail shows nothing. Tests that plant a fault of their own fail where the two cancel, so many faults here are the same
5 % in the other direction.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor, as_completed
import json
import os
from pathlib import Path
from queue import Queue
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple
import xml.etree.ElementTree as ET

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
LAWS = (
    "test_barker",
    "test_isokinetic",
    "test_laws",
    "test_minibatch_laws",
    "test_nogin",
    "test_posterior",
    "test_preconditioned",
    "test_product",
    "test_recipe_laws",
    "test_simplex",
)  # every test in these must be able to fail
ERRORS = "arguments", "refuse", "without_a_warm_up"  # in their names: tests of errors, not of laws
# a program of any size is kept for the next fault
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


class Fault(NamedTuple):
    name: str
    file: str  # its name, in whatever folder
    old: str
    new: str
    tests: str  # files, and for pytest's -k after a colon
    where: int = 0  # which of the occurrences of ``old``


O_WORDS = "ABOBA or BAOAB or BADODAB or ADBOBDA"
O_NOISE = "jnp.sqrt(2 * self.noise * h * _ou_noise(r, h) / im) * n"
NOISE, LESS_NOISE = (f"jnp.sqrt({two} * self.noise * h / im) * n" for two in ("2", "1.8"))
SOME = "test_product:Minibatch"
ANCHORS = "test_gradients:mean test_product:Control or SVRG test_minibatch_laws:variance"
SAGAS = "test_gradients:mean or algorithm test_product:SAGA"
# fmt: off
FAULTS = [
    # what a run says about itself
    Fault("linear law: noise in phase", "linear_law", "white - _of_epochs(safe, G, round(epoch)) / epoch", "white",
          "test_summary:reshuffled_noise"),
    Fault("inflation: noise beside the rows of L", "predicted_inflation", "(lambda g: _along(wide, g) / L)",
          "(lambda g: g * L)", "test_summary:low_rank"),
    Fault("inflation: the known noise of x for that of z", "predicted_inflation",
          "known = np.asarray(wide.variances(jnp.asarray(known)), float) / L**2", "pass", "test_summary:low_rank"),
    Fault("linear law: noise of the step", "linear_law", 'np.einsum("dik,djk->dij", B, B)',
          '1.05 * np.einsum("dik,djk->dij", B, B)', "test_summary:laws_that_are_known"),
    Fault("scores: own coordinates alone", "scores", "mixed = _by_other_half(x, s)", "mixed = s",
          "test_summary:correlated_coordinates"),
    Fault("scores: correlation of the same draws", "scores", "[s[:, :half] @ second, s[:, half:] @ first]",
          "[s[:, :half] @ first, s[:, half:] @ second]", "test_summary:many_coordinates"),
    Fault("report: places in own coordinates", "state", "projection(state.phase.z if batched else state.z, batched)",
          "projection(state.phase.z, batched)", "test_report:tuned_one_by_one"),
    Fault("scores: sampled variables, gradients as written", "scores", "centred_potential(potential, draws.centering)",
          "potential", "test_non_centred:known_better"),
    Fault("summary: the noisy variables as written", "summary", "sampled = run.as_sampled(draws)",
          "sampled = draws", "test_non_centred:known_better"),
    Fault("power: the warm-up makes any run right", "run_verdict", "self.needed <= (BLIND if passed else 1)",
          "self.needed <= 1 or passed", "test_run_scores:power_agree"),
    Fault("words: all digits of an absurd ratio", "wording", "if x > MOST", "if False", "test_html:inflations"),
    Fault("power: of the data alone", "run_verdict", "Power(*map(np.fmin, self, other))", "other",
          "test_run_scores:one_of_two"),
    Fault("scores: mean of the control not known", "scores", "away = control - known",
          "away = control - control.mean(0)", "test_summary:leaves_no_noise"),
    Fault("errors: independent draws", "monte_carlo", "np.sqrt(effective(x))", "np.sqrt(x.shape[0] * x.shape[1])",
          "test_compare:independent_draws_are test_summary:with_memory"),
    Fault("spread: independent draws", "monte_carlo", "limit * (errors**2).mean(0)",
          "limit * away.var(1).mean(0) / away.shape[1]", "test_summary:unlike_widths"),
    Fault("spread: all significant", "monte_carlo", "limit = fdtri(", "limit = 0.1 * fdtri(",
          "test_summary:unlike_widths"),
    Fault("spread: never significant", "monte_carlo", "limit = fdtri(", "limit = 1e3 * fdtri(",
          "test_summary:unlike_widths"),
    Fault("halving: not extrapolated", "step_halving", "factor * weight * change", "weight * change",
          "test_halving:found_and_extrapolated or twice_the_batch"),
    Fault("halving: noise of the old batch", "continued_chains", "lambda s2: less * s2", "lambda s2: s2",
          "test_halving:half_their_step"),
    Fault("inverse: the rest of a simplex as 1 minus the others", "handlers",
          "isinstance(transform, StickBreakingTransform)", "False", "test_potential:small_probabilities"),
    Fault("compare: in our own units", "comparison", "positive_sd(theirs)", "positive_sd(ours)",
          "test_compare:may_be_compared"),
    Fault("linearity: one gradient twice", "linearity", "(g - line) * (other - line)", "(g - line) ** 2",
          "test_compare:r2_is_that"),
    Fault("corrected: variance for sd", "predicted_inflation", "1 / np.sqrt(np.maximum(1 + inflation, 1e-12))",
          "1 / np.maximum(1 + inflation, 1e-12)", "test_compare:known_inflation"),
    Fault("sandwich: no root", "correction", "A = _root(inverse @ J @ inverse)", "A = (inverse @ J @ inverse)",
          "test_compare:sandwich"),
    Fault("coupling: pairs alone", "coupling", "np.minimum(paired, ranked)", "paired", "test_coupling:three_times"),
    Fault("warm-up: noise at places of a normal law", "tuner", "places[place % drawn]", "places[place]",
          "test_tuning:round_alone"),
    Fault("scores: of the true mean", "scores", "x * s + lost, x * mixed - 1 + lost", "x * s, x * mixed - 1",
          "test_summary:unbiased"),
    Fault("bound: freedom of blocks alone", "monte_carlo", "np.asarray(ess) / 2", "np.asarray(ess) * 50",
          "test_summary:little"),
    Fault("report: chance of independent draws", "statistics", "return len(T) * coordinates * (x",
          "return T.size * coordinates * (x", "test_report:beyond_chance"),
    Fault("report: squared step over 4 h", "monitor", "(2 * size * jnp.maximum", "(4 * size * jnp.maximum",
          "test_report:squared_step"),
    Fault("Stein: no trace", "stein", "(cross + d)", "cross", "test_stein:definition or right_draws"),
    Fault("to_arviz: rows shifted", "predicted_sites", "numbers[first : first + length]",
          "np.roll(numbers, 1)[first : first + length]", "test_to_arviz:log_likelihood"),
    Fault("report: never unmixed", "statistics", "NEVER_MIXED = 2.0", "NEVER_MIXED = 200.0", "test_report:never_mixed"),
    Fault("settings: the draws do not count", "settings", 'if of_draws == "ok" else', "if True else",
          "test_report:no_function"),
    Fault("doubts: NaN is small", "run_checks", "if not score <= bound:", "if score > bound:",
          "test_report:no_function"),
    Fault("doubts: an infinite temperature", "statistics", "if not np.isfinite(T).all()", "if np.isnan(T).all()",
          "test_report:no_function"),
    Fault("summary: a refuted prediction decides", "checks_with_data",
          "return np.clip(inflation, np.minimum(low, 0), np.maximum(high, 0))", "return inflation",
          "test_summary:refute"),
    Fault("summary: power of one standard error", "checks_with_data", "inflation_error]) * run.limit",
          "inflation_error])", "test_summary:power"),
    Fault("report: no chain is on its way", "statistics", ".min(1) > energy", ".min(1) > np.inf + 0 * energy",
          "test_messages:on_their_way"),
    Fault("report: large errors are known", "run_verdict", "KNOWN = 1.0", "KNOWN = 1e9", "test_messages:four_lines"),
    Fault("report: a warm temperature", "statistics", "OFF = ERRORS[0]", "OFF = 0.9",
          "test_report:little_off or predicts"),
    # all rows
    Fault("Metropolis: no heat", "metropolis", "- kinetic(old) - heat", "- kinetic(old)",
          "test_metropolis:keeps_its_distribution"),
    Fault("remedies: more rows where all are cheaper", "remedies", "if not self.costly:", "if True:",
          "test_messages:what_was_set"),
    Fault("Metropolis: the step size whatever is rejected", "warm_up", "smaller * step_size, jnp.inf)",
          "jnp.inf, jnp.inf)", "test_metropolis:enough_steps_pass or seldom_pass"),
    Fault("Metropolis: steps as short as you like", "warm_up", "jnp.minimum(share, rate * step_size)", "share",
          "test_metropolis:enough_steps_pass"),
    Fault("Metropolis: rejections are forgotten", "tuned", "(state.accept_prob,)", "()",
          "test_metropolis:seldom_pass"),
    Fault("Metropolis: the last acceptance of a draw", "chain", "probabilities += jnp.where",
          "probabilities = jnp.where", "test_metropolis:mean_over_the_steps"),
    Fault("Metropolis: nothing is rejected", "metropolis", "-work)", "1 - 0 * work)", "test_metropolis:chance"),
    Fault("Metropolis: the energy of an earlier position", "tuned",
          "potential_estimate=changed(energy, state.potential_estimate)",
          "potential_estimate=state.potential_estimate", "test_metropolis:reverses"),
    Fault("all rows: the steps pass no test", "chain", "| ~exact", "| True", "test_all_rows:pass_a_test"),
    Fault("all rows: the noise of minibatches still counts", "choice", "h = jnp.where(all_rows, of_all, h)", "h = h",
          "test_all_rows:whose_noise"),
    Fault("all rows: a gradient of few", "control_variate", "partial(full_evaluation, potential, z, rng_key)",
          "from_minibatch", "test_all_rows:is_exact"),
    Fault("all rows: in spite of a batch size", "parts", "batch_size is None)", "True)",
          "test_all_rows:nothing_is_given"),
    Fault("all rows: the rest of a step is free", "all_rows", "(plate.batch_size + rest)", "plate.batch_size",
          "test_all_rows:is_cheaper"),
    Fault("all rows: each row costs the same", "all_rows", "each = max(1.0,", "each = max(1e9,",
          "test_all_rows:weighs_more"),
    Fault("Metropolis: a rejected step is taken", "chain", "taken &= passes(", "taken |= passes(",
          "test_metropolis:reverses"),
    # runs that last
    Fault("checkpoints: draws behind the state stay", "zarr_arrays",
          "        self.rows = rows\n", "        self.rows = rows + (rows > 0)\n",
          "test_checkpoints:cut_off or kill"),
    Fault("checkpoints: a chunk begins in the one before", "zarr_arrays", "seek(place * self._row)",
          "seek((place + (chunk > 0)) * self._row)", "test_checkpoints:grow"),
    Fault("averages: of all transitions", "segments", "self._kept(i + 1) > self._kept(i)", "self._kept(i + 1) > 0",
          "test_checkpoints:averages_in"),
    Fault("averages: squares about the mean before", "segments", "left = jnp.where(counts, 1 - share, 0.0)",
          "left = jnp.where(counts, 1.0, 0.0)", "test_checkpoints:averages_in"),
    Fault("checkpoints: the state before its draws", "checkpointed", "Checkpoint(t, files[0].rows,",
          "Checkpoint(t, files[0].rows + 1,", "test_checkpoints:stopped"),
    Fault("checkpoints: a damaged state ends the run", "storage", "EOFError, ValueError, KeyError, zipfile.BadZipFile,",
          "EOFError,", "test_checkpoints:damaged"),
    Fault("checkpoints: short draws not seen", "storage", "            check_draws(draws)\n", "",
          "test_checkpoints:missing"),
    Fault("checkpoints: constants of a program", "identity", "np.asarray(v.val)!r", "v.aval!s",
          "test_checkpoints:refused_by_name"),
    Fault("checkpoints: thinning from the first draw", "segments", "mcmc.num_warmup + mcmc.num_samples % mcmc.thinning",
          "mcmc.num_warmup", "test_checkpoints:was_stopped"),
    Fault("checkpoints: compiled for each place", "segments", "times = jnp.int32(t), jnp.int32(n)",
          "self._program = jax.jit(self._loop); jax.clear_caches(); times = jnp.int32(t), jnp.int32(n)",
          "test_checkpoints:compiled_again"),
    # what the warm-up finds
    Fault("coordinates: not transposed", "coordinates", "product(self.scale.T,", "product(self.scale,",
          "test_tuning:gradients_in_x"),
    Fault("tuner: noise of both gradients", "probes", "(gradients.first - gradients.second) / jnp.sqrt(2.0)",
          "gradients.first - gradients.second",
          "test_tuning:noise_is_that"),
    Fault("pilot: places stay as L is stretched", "pilot", "into(moments.places)", "moments.places",
          "test_tuning:leave_everything"),
    Fault("pilot: axes of a few places far out", "noise_samples", "jnp.minimum(1, longest", "jnp.maximum(1, longest",
          "test_tuning:axes_turn"),
    Fault("pilot: virial about 0", "pilot", "of_block[:, 3] - x * of_block[:, 2]", "of_block[:, 3]",
          "test_tuning:check_sees"),
    Fault("pilot: directions without draws narrowed", "pilot", "(low > 0) & (values < low)", "values < low",
          "test_tuning:stretch_nothing"),
    Fault("pilot: never stretches", "pilot", "jnp.clip(factors, 0.1, 10.0)", "1.0", "test_tuning:rounds_stretch"),
    Fault("arrow: a border with the wrong sign", "arrow", "M = -length * product", "M = length * product",
          "test_arrow:whitens or normal"),
    Fault("arrow: the gradient of a global without its groups", "arrow",
          "x = x + product(g.ravel(), K.reshape(-1, K.shape[-1]))", "pass", "test_arrow:algebra"),
    Fault("arrow: groups that the rows couple", "groups", "jnp.linalg.norm(first - second, axis=1)",
          "0.0 * jnp.linalg.norm(first, axis=1)", "test_arrow:couple"),
    Fault("arrow: the first axis has the groups", "groups", "shape.index(max(shape))", "0", "test_arrow:longest"),
    Fault("arrow: families that the rows couple", "groups", "if not is_high_dimensional(potential.prototype):",
          "if False:", "test_arrow:two_large"),
    Fault("arrow: groups that the prior couples", "groups", "parts[name not in latents]", "parts[0]",
          "test_arrow:prior_couples"),
    Fault("arrow: signs are left on the blocks", "arrow", "signs * jax.vmap(of_family)", "jax.vmap(of_family)",
          "test_arrow:normal"),
    Fault("wide: the smallest eigenvalues are left alone", "low_rank", "_factors(smallest, smallest < 1 / ROUND)",
          "_factors(smallest, smallest < 0)", "test_tuning:does_not_see"),
    Fault("low rank: not turned back", "coordinates", "return self.stretched(self.width * gradient, self.factors)",
          "return self.width * gradient", "test_tuning:gradients_in_x"),
    Fault("search: an end of a descent is not improved", "search", "energies.min() + d", "energies.min()",
          "test_tuning:worse_than_an_end"),
    Fault("search: begins where no gradient is finite", "search", "jnp.argmin(energies)", "0",
          "test_tuning:search_begins"),
    Fault("start: the widest draw where no gradient is finite", "start",
          "[jnp.zeros(1), sizes, jnp.resize(sizes[:4], (WIDE * descents,))]", "[sizes, jnp.zeros(1)]",
          "test_tuning:is_the_origin"),
    Fault("start: the end of the first descent", "start", "0, 2 if descents else 1, ordered",
          "0, 1, ordered", "test_tuning:mode_with_the_mass"),
    Fault("start: as many descents for each chain", "start", "DESCENTS // 2) // chains", "DESCENTS // 2)",
          "test_tuning:number_of_descents"),
    Fault("tuner: steps that pass the test are halved for their draws", "tuner", " & ~warm_up.passes_the_test", "",
          "test_metropolis:not_halved"),
    Fault("start: no descents on few rows for chains that use all", "potential", "        if self.plates:\n",
          "        if True:\n", "test_tuning:start_for_all_rows or number_of_descents"),
    Fault("a column and a vector: the distribution as plates repeat it", "structure", "log_prob), values, own, _plates",
          "log_prob), values, fn.batch_shape, _plates", "test_rows_of_data:column_and_a_vector"),
    Fault("lengths: minibatched plates only", "minibatched", "    if not others:\n", "    if True:\n",
          "test_rows_of_data:all_of_its_rows or beside or automatic"),
    Fault("pilot: samples that are not finite take weight", "noise_samples",
          "jnp.maximum(finite.mean(), 1 / len(noise))", "1.0", "test_tuning:does_not_count"),
    Fault("tuner: a failed check changes nothing", "tuner",
          "((halfway | last) & wrong)", "(t < 0)",
          "test_tuning:last_check"),
    Fault("tuner: the scores of 3/4 are forgotten", "tuner", "jnp.where(halfway, jnp.stack",
          "jnp.where(t < 0, jnp.stack", "test_tuning:last_check"),
    Fault("tuner: a score that is no number is right", "warm_up",
          "right = (scores.gradient <= limit) & (scores.virial <= limit)",
          "right = ~(scores.gradient > limit) & ~(scores.virial > limit)", "test_tuning:last_check"),
    Fault("pilot: two rounds as one", "pilot", "(earlier != 0).any(), jnp.sqrt(2.0), 1.0",
          "(earlier != 0).any(), 1.0, 1.0", "test_tuning:two_rounds"),
    Fault("tuner: lost draws are a new centre", "tuner", "trees.where(lost, (settings",
          "trees.where(False & lost, (settings",
          "test_explosions:starts_again"),
    Fault("pilot: R-hat of lost draws", "pilot", " & (statistics.r_hat <= APART).all()", "",
          "test_explosions:lost_round_is"),
    Fault("once: what sites have in common is computed for each", "once", "> FEW_LEAVES", "> 10**6",
          "test_compiled:proportion"),
    Fault("handlers: a value is computed for each site that needs it", "handlers", "return once(value, z)",
          "return value", "test_compiled:each_other"),
    Fault("chain: stays where steps are refused", "tuned", "0.5 ** halvings", "1.0 ** halvings",
          "test_explosions:leaves"),
    Fault("chain: any energy", "tuned", "PER_COORDINATE * d + BEYOND", "1e30", "test_explosions:schools or impossible"),
    Fault("chain: energy of one coordinate", "tuned", "_is_possible(d * temperature", "_is_possible(temperature",
          "test_explosions:whole_momentum"),
    Fault("step rule: any bend", "step_rule", "** 2 <= BENT", "** 2 <= 1e30", "test_step_rule:not_normal"),
    Fault("step rule: the bend of any step", "step_rule", "(self.reach(h) / self.reach(largest)) ** 2", "1.0",
          "test_step_rule:not_normal"),
    Fault("step rule: any error of the noise", "step_rule", " & (h * unknown / 2 <= UNKNOWN)", "",
          "test_step_rule:inaccurate"),
    Fault("pilot: a bend of noise", "noise_samples", "jnp.sum(first * second), 0", "jnp.sum(bends.mean(0) ** 2), 0",
          "test_step_rule:cancels"),
    Fault("pilot: the error of one sample", "noise_samples", "1e-30) / jnp.sqrt(len(squares))", "1e-30)",
          "test_step_rule:relative_error"),
    Fault("probes: other rows at the ends", "probes", "jnp.stack([first, second, first, first])",
          "jnp.stack([first, second, second, second])", "test_step_rule:laplacian"),
    Fault("G: too much noise for BAGAB", "underdamped", "injected + 0.25 * h * h", "injected + 0.26 * h * h",
          "test_nogin:leaves_out"),
    Fault("SGHMC: ends half a drift late", "sghmc", '"BAGAB" if options', '"ABGBA" if options',
          "test_integrators:self_tuned"),
    Fault("tuner: draws stay short", "tuner", "warm_up.length * jnp.where(slow, longer, 1)", "warm_up.length",
          "test_tuning:become_longer"),
    Fault("pilot: each draw for effective", "pilot", "effective.min() / (draws * chains)",
          "effective.max() / draws / chains", "test_tuning:effective_draws"),
    Fault("newton: whitens once", "coordinates", "return self.turned(other.scale)",
          "return self._replace(scale=other.scale)", "test_tuning:whitens"),
    Fault("newton: the mode for the law", "newton", "draws[k % pairs], -draws[k % pairs]",
          "0 * draws[0], 0 * draws[0]", "test_tuning:normal_law"),
    Fault("newton: a part for the whole", "newton", "value_and_grad(energy(k % parts))",
          "value_and_grad(energy(0 * k))", "test_tuning:normal_law"),
    Fault("newton: any step", "newton", "& (bound < state.bound)", "", "test_tuning:pit or normal_law"),
    Fault("newton: moves before it is narrow", "newton", "(extremes < BOLDEST).all(), length, 0",
          "True, length, 0", "test_tuning:unlike"),
    Fault("pilot: one limit for all", "pilot", "largest_z_score(2 * coordinates,", "largest_z_score(2,",
          "test_tuning:chance"),
    Fault("tuner: not frozen", "tuner", "end // 4, end // 2])).any()", "end // 4, end])).any()",
          "test_tuning:frozen"),
    # the dynamics
    Fault("SGLD: noise", "overdamped", "jnp.sqrt(2 * h * im) * n", "jnp.sqrt(2 * h * im) * n / 1.05",
          "test_laws:SGLD or sgld test_minibatch_laws:sgld test_posterior:SGLD test_product:SGLD "
          "test_recipe_laws:leave_their_law"),
    Fault("SGLD: drift", "overdamped", "z - h * im * g", "z - 1.05 * h * im * g", "test_laws:SGLD or sgld"),
    Fault("SGLD: drift not preconditioned", "overdamped", "z - h * im * g", "z - h * g", "test_laws:sgld"),
    Fault("O: noise", "underdamped", O_NOISE, O_NOISE + " / 1.05",
          f"test_laws test_posterior test_minibatch_laws:ABOBA or reshuffled test_product:{O_WORDS} "
          "test_recipe_laws:leave_their_law"),
    Fault("O: friction", "underdamped", "p * jnp.exp(-r * h) + ", "p * jnp.exp(-1.05 * r * h) + ", f"test_laws {SOME}"),
    Fault("O: noise without mass", "underdamped", "_ou_noise(r, h) / im)", "_ou_noise(r, h))",
          f"test_laws:mass {SOME}"),
    Fault("O: series", "underdamped", "1 - x / 2 * (", "1 + x / 2 * (", "test_laws:exact_flow"),
    Fault("O: sign of the variance", "underdamped", "-jnp.expm1(-safe)", "jnp.expm1(safe)",
          "test_laws:exact or local"),
    Fault("N: noise", "underdamped", NOISE, LESS_NOISE,
          "test_laws:BNF or NFB or ssi test_minibatch_laws:ssi test_posterior:ADFBNFDA test_product:BN "
          "test_recipe_laws:leave_their_law"),
    Fault("E: noise", "underdamped", NOISE, LESS_NOISE,
          "test_laws:euler test_minibatch_laws:euler test_product:EA or AED test_recipe_laws:leave_their_law", 1),
    Fault("F: friction", "underdamped", "p * jnp.exp(-r * h), ", "p * jnp.exp(-r * h / 1.05), ",
          f"test_laws:friction or BNF or ssi {SOME}"),
    Fault("E: friction", "underdamped", "p - h * (g + r * p)", "p - h * (g + 1.05 * r * p)", f"test_laws:euler {SOME}"),
    Fault("B: kick", "underdamped", "p - h * g", "p - 1.05 * h * g", f"test_laws {SOME}"),
    Fault("A: drift", "underdamped", "z + h * im * p", "z + 1.05 * h * im * p", f"test_laws {SOME}"),
    Fault("A: drift without mass", "underdamped", "z + h * im * p", "z + h * p", f"test_laws:mass {SOME}"),
    Fault("D: thermostats", "nose_hoover", "h * (e - 1)", "h * (e - 1.05)", f"test_laws:thermostat or local {SOME}"),
    Fault("D: thermostat", "nose_hoover", "(phase) - 1)", "(phase) - 1.05)", f"test_laws:SGNHT {SOME}"),
    Fault("D: sign", "nose_hoover", "xi + h * (e - 1)", "xi - h * (e - 1)", f"test_laws:MSGNHT {SOME}"),
    Fault("D: p.p in place of p M^-1 p", "underdamped", "im * p * p", "p * p", f"test_laws:mass {SOME}"),
    Fault("D: start of the thermostats", "underdamped", "0.5 * h * im * s2, variance, self",
          "0.475 * h * im * s2, variance, self", "test_start:balance"),
    Fault("start of the momentum", "underdamped", "n / jnp.sqrt(", "0.95 * n / jnp.sqrt(", "test_start:momentum"),
    Fault("G: the noise of one kick", "underdamped", "0.25 * h * h", "0.5 * h * h", "test_nogin:z_is_exact"),
    Fault("G: the noise of the gradient is not read", "underdamped", "0.25 * h * h * im * s2", "0 * s2",
          "test_nogin:z_is_exact or inflation"),
    Fault("G: k without mass", "underdamped", "0.25 * h * h * im * s2", "0.25 * h * h * s2", "test_nogin:mass"),
    Fault("G: noise without 1 + a", "underdamped", "b * jnp.sqrt(injected / im)", "jnp.sqrt(injected / im)",
          "test_nogin:z_is_exact or is_aboba"),
    Fault("G: noise without mass", "underdamped", "b * jnp.sqrt(injected / im)", "b * jnp.sqrt(injected)",
          "test_nogin:mass or is_aboba"),
    Fault("G: D h / 2 for its tanh", "underdamped", "jnp.tanh(0.5 * self.noise * h)", "0.5 * self.noise * h",
          "test_nogin:is_aboba test_product:ABGBA"),
    Fault("G: inflation as if no noise were taken out", "underdamped", "(x - x0) / (self.noise + x0)",
          "x / self.noise", "test_nogin:inflation or widen"),
    Fault("G: one minibatch measures the variance", "chain", "RowsState(key_rows, k)", "RowsState(key_rows, 0 * k)",
          "test_nogin:measures test_barker:each_chain_measures"),
    Fault("G: the noise of the model itself is not measured", "chain", "potential.plates or potential.randomised",
          "potential.plates", "test_nogin:randomised"),
    Fault("G: measured where there is no noise", "chain", "noisy = potential.plates or potential.randomised",
          "noisy = True", "test_nogin:without_minibatches"),
    Fault("G: reshuffled rows by default", "parts", "WithoutReplacement if", "Reshuffled if",
          "test_nogin:independent"),
    # preconditioners
    Fault("preconditioner: never frozen", "preconditioned", "own.share, 0)", "own.share, own.share)",
          "test_preconditioned"),
    Fault("preconditioner: thaws", "preconditioned", "own.share, 0)", "1.0, 0)",
          "test_preconditioned:never_again"),
    Fault("preconditioner: a gradient counts after its use", "preconditioned", "im), square, own",
          "im), own.square, own", "test_preconditioned:far_away"),
    Fault("preconditioner: the mean is the first V", "preconditioned", "jnp.maximum(g2, mean.astype(v.dtype))",
          "mean.astype(v.dtype)", "test_preconditioned:far_away"),
    Fault("preconditioner: momentum of the old mass", "preconditioned", "p * jnp.sqrt(im / new)", "p",
          "test_preconditioned:momentum"),
    Fault("preconditioner: no root", "preconditioned", "jnp.sqrt(v)), im)", "v), im)", "test_preconditioned:root"),
    Fault("preconditioner: mass of nobody", "preconditioned", "inverse_mass_matrix=phase.auxiliary.inverse_mass",
          "inverse_mass_matrix=1.0", "test_preconditioned:frozen_step or summary"),
    # runs
    Fault("tempered: keys of the last run", "tempered", "state.replicas._replace(rng_key=keys)",
          "state.replicas", "test_tempered:key_of_a_run"),
    Fault("local: sites elsewhere are not looked at", "models", "check_nothing_else_depends(densities, start",
          "(lambda *_: None)(densities, start", "test_local:refuses"),
    Fault("tuner: one step per draw", "tuner", "self.steps_per_sample or 1", "1", "test_tuning:steps_per_draw"),
    Fault("weights: chains by their step sizes", "weights", "reshape(-1, 1)", "max()", "test_tuning:weights_of"),
    Fault("gradient noise: steps in other coordinates", "gradient_noise", "coordinates.variances(added)",
          "coordinates.variances(jnp.ones_like(added))", "test_tuning:gradient_noise"),
    # predictions
    Fault("predict: mean of the logs", "predicted_sites", "jax.tree.map(jnp.logaddexp, sums[1], log)",
          "jax.tree.map(jnp.maximum, sums[1], log)", "test_predict"),
    Fault("predict: unweighted", "predict", "count * weights(draws) if ours else", "np.ones(count) if ours else",
          "test_predict:weight"),
    Fault("predict: rows that fill up", "predicted_sites", "np.split(whole, [size], axes[site])[0]", "whole",
          "test_predict:all_draws"),
    Fault("predict: turns count alike", "predict", "share = a.count / total, b.count / total", "share = 0.5, 0.5",
          "test_predict:turn"),
    # starts of ensembles
    Fault("warm_start: trains on all rows", "warm_start", "rows = {name: trained[name][r] if name in trained else r",
          "rows = {name: r", "test_warm_start:not_seen"),
    Fault("warm_start: the last weights", "warm_start", "better = energy < lowest", "better = energy < energy + 1",
          "test_warm_start:early"),
    Fault("warm_start: one for all", "warm_start", "keys = [random.split(key, members) for key in keys]",
          "keys = [jnp.stack(members * [random.key_data(key)]) for key in keys]", "test_warm_start:differ"),
    # cycles
    Fault("cycles: noise while exploring", "splitting", "jnp.where(noise_free, 0, n)",
          "jnp.where(noise_free, 0.05 * n, n)", "test_cyclical"),
    Fault("cycles: no noise for ever", "chain", "schedule.explores(schedule_index", "0 <= (schedule_index",
          "test_cyclical"),
    Fault("cycles: tags a step late", "schedules", "np.asarray(i, np.int64) - 1", "np.asarray(i, np.int64)",
          "test_cyclical"),
    Fault("cycles: explored draws count", "draws", ".reshape(shape) < 0", ".reshape(shape) < -1",
          "test_cyclical"),
    # jumps
    Fault("isokinetic: d for d - 1", "isokinetic", "math.sqrt(d) / (d - 1)", "math.sqrt(d) / d",
          "test_isokinetic:third or turn_solves"),
    Fault("isokinetic: another length", "isokinetic", "length = math.sqrt(trees.size(phase.z))", "length = 1.0",
          "test_isokinetic:length"),
    Fault("isokinetic: halved where refused", "isokinetic", "jax.tree.map(jnp.negative, phase.momentum)",
          "jax.tree.map(lambda u: -scale * u, phase.momentum)", "test_isokinetic:around"),
    Fault("isokinetic: noise off the sphere", "isokinetic",
          "_unit(jax.tree.map(lambda u, n: keep * u + spread * n, phase.momentum, numbers))",
          "jax.tree.map(lambda u, n: keep * u + spread * n, phase.momentum, numbers)",
          "test_isokinetic:length or uniform"),
    Fault("isokinetic: mass against the noise", "isokinetic", "mean / (s2 + FLOOR * mean))",
          "(s2 + FLOOR * mean) / mean)", "test_isokinetic:heats"),
    Fault("Barker: not corrected", "barker", "variance * w * w, 1e-12", "0 * w, 1e-12", "test_barker"),
    Fault("Barker: corrected half", "barker", "variance * w * w, 1e-12", "0.5 * variance * w * w, 1e-12",
          "test_barker"),
    Fault("Barker: steep", "barker", "norm.cdf(-g * w /", "norm.cdf(-1.05 * g * w /", "test_barker"),
    Fault("Barker: one normal law", "barker", "SCALES = (0.928046, 0.588707, 0.36853)", "SCALES = 3 * (1 / 1.702,)",
          "test_barker"),
    Fault("Barker: long jumps", "barker", "2 * h * im / (1 + SPREAD**2)", "2.2 * h * im", "test_barker"),
    Fault("Barker: longer jumps where it is steep", "barker", "(1 + SPREAD * n)", "(1 + SPREAD * n + 0.1 * jnp.abs(g))",
          "test_barker:withstands"),
    Fault("Barker: upwards too often", "barker", "noise.uniform_like(key_sign",
          "0.9 * noise.uniform_like(key_sign", "test_barker:law_of_the_matrix"),
    Fault("Barker: mass", "barker", "2 * h * im / (1", "2 * h / (1", "test_barker:jump_is"),
    # exchanges
    Fault("tempered: inverted exchange", "tempered", "return delta * difference -",
          "return -delta * difference -", "test_tempered:weights or balance"),
    Fault("tempered: not corrected", "tempered", "0.5 * delta**2", "0 * delta**2", "test_tempered:balance"),
    Fault("tempered: as for one energy", "tempered", "0.5 * delta**2", "delta**2", "test_tempered:balance"),
    Fault("tempered: noise not measured", "tempered", "(1 / n - 1 / size)", "0 * (1 / n)",
          "test_tempered:variance"),
    Fault("tempered: gradient of another temperature", "tempered", "factor = betas / before.beta",
          "factor = jnp.ones_like(betas)", "test_tempered:carried"),
    # the words
    Fault("a letter gets all of h", "splitting", "h / self.word.count(letter)", "h", f"test_laws {SOME}"),
    Fault("a stale gradient", "splitting", "fresh = fresh and not flow.moves", "pass",
          f"test_laws:BAOAB or OBABO {SOME}"),
    Fault("the word read backwards", "splitting", "for letter in self.word:\n            flow, inputs",
          "for letter in reversed(self.word):\n            flow, inputs", f"test_laws:euler {SOME}"),
    Fault("one noise for all letters", "splitting", "noise.normal_like(next(keys)", "noise.normal_like(rng_key",
          "test_integrators"),
    # normal numbers
    Fault("normal numbers: a narrower law", "box_muller", "jnp.sqrt(-2 * ", "jnp.sqrt(-1.99 * ", "test_noise"),
    Fault("normal numbers: one word for both", "box_muller", "lax.bitcast_convert_type(b,",
          "lax.bitcast_convert_type(a,", "test_noise"),
    Fault("normal numbers: too few rounds", "box_muller", "ROUNDS = 20", "ROUNDS = 4", "test_noise"),
    Fault("normal numbers: a shorter series", "box_muller", "for k in range(6)]", "for k in range(4)]", "test_noise"),
    # the potential and its estimators
    Fault("N/n", "potential", 'site["scale"] * log_prob', 'site["scale"] * log_prob / 1.05',
          "test_potential test_posterior:scaling or regression or inflate test_minibatch_laws"),
    Fault("the Jacobian of a transform left out", "potential", 'or name in jacobians', 'or name.endswith("_log_det")',
          "test_potential test_posterior:constrained"),
    Fault("centring: the width of the partially centred variable", "centering", "share * jnp.log(self.scale) -", "-",
          "test_centering:law"),
    Fault("centring: a mirrored family", "centering", "jnp.sign(transform.scale)", "1.0", "test_centering:law"),
    Fault("centring: the density of the site itself", "potential", "isinstance(form, LocationScale)", "False",
          "test_centering:digits"),
    Fault("centring of vectors: the Jacobian left out", "handlers", 'numpyro.factor(f"_{name}_log_det"',
          'callable(transforms) or numpyro.factor(f"_{name}_log_det"', "test_centering:law"),
    Fault("centring: shares swapped", "centering", "(self.mask, share, 1)", "(self.mask, 1 - share, 1)",
          "test_centering:non_centred"),
    Fault("centring: the precision of the prior", "centering", "self.scale**2 * curvature", "self.scale * curvature",
          "test_centering:data"),
    Fault("centring: all elements decide together", "data_share",
          "jnp.ones(()) if isinstance(form, Multivariate) else form.scale", "jnp.ones(())",
          "test_centering:another_scale"),
    Fault("codes: a loop depends on all it closes over", "dataflow",
          "return _after_scan(eqn, body, [Fact(fact.depends) for fact in inputs])",
          "return [Fact(depends)] * len(eqn.outvars)", "test_local:beside"),
    Fault("centring of vectors: the Jacobian left out", "multivariate", "(1 - self.share) * jnp.log", "0 * jnp.log",
          "test_centering:law"),
    Fault("centring of vectors: shares swapped", "multivariate", "(self.mask, share, 1)", "(self.mask, 1 - share, 1)",
          "test_centering:multivariate"),
    Fault("centring of vectors: the data of earlier elements", "multivariate", "...ji,...jk->...ik",
          "...ij,...kj->...ik", "test_centering:vectors"),
    Fault("centring of walks: the Jacobian left out", "random_walk", "(1 - self.share) * jnp.log", "0 * jnp.log",
          "test_centering:law"),
    Fault("centring of walks: the data of earlier elements", "random_walk", "reverse=True", "reverse=False",
          "test_centering:series"),
    Fault("centring of walks: shares of the first step in a scan", "centering", "centering[name][step]",
          "centering[name][0]", "test_centering:law"),
    Fault("scan in reverse: values in the order of the steps", "handlers", "len(x) - 1 - step", "step",
          "test_handlers:reverse"),
    Fault("scan in reverse: draws in the order of the steps", "handlers", "x[::-1] if site",
          "x if True or site", "test_predict:reverse"),
    Fault("centring of series: each element by itself", "centred", "if SCAN_INDEX in trace", "if False and trace",
          "test_centering:series"),
    Fault("non-centred by hand: the Jacobian left out", "non_centred",
          "-jnp.sum(jnp.log(jnp.abs(self._factor(share))))", "jnp.zeros(())", "test_non_centred:law_is or level"),
    Fault("non-centred by hand: that of vectors left out", "non_centred",
          "-jnp.sum(jnp.log(jnp.abs(self._diagonal(self._last(share)))))", "jnp.zeros(())", "test_non_centred:vectors"),
    Fault("non-centred by hand: the sign of the scale", "non_centred", "jnp.where(scale < 0, -size, size)", "size",
          "test_non_centred:law"),
    Fault("non-centred by hand: matrices of any form", "non_centred", "and triangular.issuperset(rest):", ":",
          "test_non_centred:uses"),
    Fault("centring: coupled elements by the mean alone", "data_share",
          "jnp.where(mean > deviation, mean, jnp.hypot(mean, deviation))", "jnp.maximum(mean, 0)",
          "test_non_centred:couple"),
    Fault("centring: sites that sum to zero as written", "centering", "and not isinstance(transform, OF_VECTORS):", ":",
          "test_centering:law"),
    Fault("non-centred by hand: other uses of z", "non_centred", "and replaces:", "and (replaces or True):",
          "test_non_centred:uses"),
    Fault("non-centred by hand: scales by row", "non_centred", "and not self._by_row.intersection(rest):", ":",
          "test_non_centred:uses"),
    Fault("second order: the product with the Hessian of all rows", "second_order", "unravel(hessian.times(flat))",
          "unravel(0.9 * hessian.times(flat))", "test_second_order:mean_over_all"),
    Fault("second order: not cut off", "second_order", "REACH = 3.0", "REACH = 1e30", "test_second_order:far_away"),
    Fault("second order: an arrow that is not exact", "second_order", "EXACT = 1e-3", "EXACT = 1e3",
          "test_second_order:couple"),
    Fault("second order: the border of an arrow", "second_order", "jnp.sum(B * v_globals, -1)", "0",
          "test_second_order:that_of"),
    Fault("second order: never tried", "choice", "cheap & (LARGER * h <= of_all)", "cheap & (LARGER * h > of_all)",
          "test_second_order:warm_up"),
    Fault("second order: blocks alone have it in the first round", "tuner", "(kind > 0) | (t == 0)", "kind > 0",
          "test_second_order:order_of_the_chain"),
    Fault("report: nothing is said of a run that is not checked", "report_hook", "elif run.unchecked:", "elif False:",
          "test_run_scores:long_run"),
    Fault("steps: a fall is refused", "tuned", "taken | falls", "taken", "test_explosions:far_away"),
    Fault("steps: an unstable step is a fall", "tuned", "(uphill < 0)", "(uphill > 0)", "test_explosions:impossible"),
    Fault("step rule: noise that grows", "step_rule", "quiet &= h**3", "quiet &= 0 * h**3", "test_step_rule:grows"),
    Fault("centring: draws stay in the centred variables", "chain",
          "z = potential.in_variables_of(usual, self.position(potential, state))",
          "z = self.position(potential, state)", "test_centering:step"),
    Fault("energies of rows", "potential", "energy * (n / plate.size)", "energy * (0.95 * n / plate.size)",
          f"test_potential {SAGAS} test_minibatch_laws:variance"),
    Fault("full gradient", "full_pass", "t + x / times", "t + 0.95 * x / times", ANCHORS),
    Fault("gradient at the anchor", "control_variate", "g - a + full", "g - 0.95 * a + full", ANCHORS),
    Fault("SVRG: no new anchor", "control_variate", "(i > 0) & (i %", "(i < 0) & (i %",
          "test_gradients:svrg test_product:SVRG test_variance_reduction:stationary"),
    Fault("SAGA: K/m", "saga", "g + t + scale * x", "g + t + 0.95 * scale * x",
          f"{SAGAS} test_minibatch_laws:variance"),
    Fault("SAGA: the sum is not kept", "saga", "total=jax.tree.map(jnp.add, gradient_state.total, masked.total)",
          "total=gradient_state.total", SAGAS),
    Fault("SAGA: a row that came twice is written twice", "saga", "first.reshape(-1", "jnp.ones_like(first).reshape(-1",
          "test_gradients:twice test_product:SAGA"),
    Fault("SAGA online: unseen rows at 0", "saga", "t / jnp.maximum(gradient_state.count, 1)", "0 * t",
          "test_gradients:online test_product:online"),
    Fault("SAGA online: a refused step counts", "saga", "gradient_state.count, masked.count",
          "gradient_state.count, update.change.count", "test_gradients:refused"),
    Fault("SAGA: energy without its scale", "saga", "prior + scale * batch.energy", "prior + batch.energy",
          "test_gradients:energy"),
    Fault("SAGA: the sum is never taken anew", "saga", "due = (i % steps == 0)", "due = (i < 0)",
          "test_gradients:rounding"),
    Fault("SAGA: the sum is taken anew at one epoch only", "saga", "(epoch & (epoch - 1) == 0) | (epoch % 16 == 0)",
          "epoch == 1", "test_gradients:anew"),
    Fault("SAGA: a sum of slopes under the old values", "saga", 'if self.per != "linear":', "if True:",
          "test_gradients:design"),
    Fault("the search takes a maximum for affine", "program", "{lax.optimization_barrier_p}",
          "{lax.optimization_barrier_p, p.max_p}", "test_linear:bends"),
    Fault("the search takes a division for linear in both", "program", "p.div_p: 1", "p.div_p: 2", "test_linear:bends"),
    Fault("predictor: any is affine", "predictor", "return _relative(*map(derivative,",
          "return 0 * _relative(*map(derivative,", "test_linear:refused"),
    Fault("predictor: any is enough", "predictor", "jnp.maximum(*of_gradients)", "0 * of_gradients[0]",
          "test_linear:refused"),
    Fault("predictor: inverse of a row of zeros", "predictor", "jnp.where(gram > 0, 1 / gram, 0)", "1 / gram",
          "test_linear:function"),
    Fault("chunks: whatever they take", "full_pass", "BUDGET = 2**26", "BUDGET = 2**40", "test_counts:chunk"),
    Fault("chunks: needlessly small", "full_pass", "BUDGET = 2**26", "BUDGET = 2**16", "test_counts:chunk"),
    # rows and step sizes
    Fault("Reshuffled: one order for all epochs", "schemes", "words(rng_key, epoch,", "words(rng_key, 0,",
          "test_rows:epoch"),
    Fault("rows: the last never comes", "permutation", "add(y, words[ROUNDS] % jnp.uint32(size), size)",
          "jnp.minimum(y, size - 2)", "test_rows:is_a_permutation"),
    Fault("rows: the last of a few never comes", "permutation", "return smaller.sum(-1)",
          "return jnp.minimum(smaller.sum(-1), size - 2)", "test_rows:is_a_permutation"),
    Fault("rows: a network for a few rows too", "permutation", "_ranks(words, x, size) if size <= SMALL",
          "_ranks(words, x, size) if size <= 8", "test_rows:pairs"),
    Fault("rows: too few rounds", "permutation", "ROUNDS = 8", "ROUNDS = 6", "test_rows:pairs"),
    Fault("rows: equal words are equal rows", "permutation", "(jnp.arange(size, dtype=jnp.uint32) < number)",
          "(number < 0)", "test_rows:ranks"),
    Fault("rows: a number of a batch below 2**31", "permutation", "jnp.full_like(blocks, jnp.asarray(t, jnp.uint32))",
          "jnp.full_like(blocks, jnp.asarray(t, jnp.uint32) % 2**30)", "test_rows:uint32"),
    Fault("rows shared with three plates", "schemes", "random.fold_in(state.rng_key, p) for p",
          "random.fold_in(state.rng_key, min(p, 1)) for p", "test_rows:plates"),
    Fault("contiguous: one boundary for all", "schemes", "add(order[-1] % jnp.uint32(size)",
          "add(jnp.uint32(0)", "test_rows:likely"),
    Fault("blocks: none goes on at the first row", "schemes", "words(rng_key, t, 1)[0] % jnp.uint32(size)",
          "words(rng_key, t, 1)[0] % jnp.uint32(size - batch_size + 1)", "test_blocks:likely or unbiased"),
    Fault("blocks: the noise of scattered rows is subtracted", "choice", "jax.tree.map(lambda of_kinds: of_kinds[kind]",
          "jax.tree.map(lambda of_kinds: of_kinds[0]", "test_blocks:variance"),
    Fault("blocks: whatever their noise", "noise_samples", "return each & fits(", "return each | ~each | fits(",
          "test_blocks:as_quiet or chosen"),
    Fault("blocks: only their noise in all", "noise_samples", "return each & fits(", "return fits(",
          "test_blocks:as_quiet"),
    Fault("blocks: either of both", "noise_samples", "each & fits(blocks.sum(1)", "each | fits(blocks.sum(1)",
          "test_blocks:as_quiet"),
    Fault("blocks: none of the noise is chance", "noise_samples", "+ most * error", "", "test_blocks:as_quiet"),
    Fault("blocks: a choice for each chain", "schemes", "chosen = lax.cond(contiguous,",
          "chosen = lax.cond(contiguous & (state.t < 2**31),", "test_blocks:a_choice_gives"),
    Fault("WithReplacement: the last row never comes", "schemes", "(batch_size,), 0, size,",
          "(batch_size,), 0, size - 1,", "test_rows:likely"),
    Fault("h of the step after", "chain", "self.h(state.i, RarelyChanging", "self.h(state.i + 1, RarelyChanging",
          "test_product:SGLD test_posterior:decreasing"),
    Fault("h in single precision", "chain", "jnp.result_type(*jax.tree.leaves(z))", "jnp.float32",
          "test_posterior:double"),
    Fault("Polynomial: exponent", "schedules", "self.a * (self.b + i) ** (-self.gamma)",
          "self.a * (self.b + i) ** (-0.95 * self.gamma)", "test_schedules"),
    Fault("Polynomial: exponent of a relative one", "schedules", "(1 + i / self.b) ** (-self.gamma)",
          "(1 + i / self.b) ** (-0.95 * self.gamma)", "test_schedules"),
    Fault("weights", "weights", "w = h / h.sum()", "w = h**0.9524 / (h**0.9524).sum()",
          "test_variance_reduction:weight"),
    Fault("weights: the effective sample size inverted", "weights", "variance / spread, np.nan",
          "spread / variance, np.nan", "test_variance_reduction:effective"),
    # the search for a mode, and what a chain of thermostats starts from
    Fault("find_mode: constrained values", "mode", "            return z\n",
          "            return compiled(ModelPotential.constrain, model, args, kwargs, batch_size)(z)\n",
          "test_mode:standardised"),
    Fault("find_mode: arrival by d^2", "mode", "jnp.sqrt(squared / trees.size(z))",
          "jnp.sqrt(squared) / trees.size(z)", "test_mode:coordinates"),
    Fault("find_mode: arrival by the total length", "mode", "jnp.sqrt(squared / trees.size(z))",
          "jnp.sqrt(squared)", "test_mode:coordinates"),
    Fault("find_mode: one round", "mode", "ROUNDS = 8", "ROUNDS = 1", "test_mode:standardised"),
    Fault("find_mode: steps that do not grow", "mode", "GROWTH = 10.0", "GROWTH = 1.0", "test_mode:needed"),
    Fault("find_mode: the bar does not wait", "mode", "jax.block_until_ready(", "tuple(", "test_mode:bar"),
    Fault("find_mode: a key used twice", "mode", "check(z, key_check)", "check(z, key_model)", "test_mode:key"),
    Fault("descent: a key used twice", "start", "key_noise, key_model = random.split(key)",
          "key_noise, key_model = key, key", "test_mode:key"),
    Fault("inflation under one thermostat", "nose_hoover", "(x - mean) / (self.noise + mean)",
          "(x - mean) / self.noise", "test_start:inflation"),
    # refused steps
    Fault("refusal: the momentum stays", "dynamics", "-scale * p", "scale * p",
          "test_support:wall test_chain:reverses"),
    Fault("refusal: the momentum is never halved", "chain", "jnp.where(state.refused > 0, 0.5, 1.0)", "1.0",
          "test_support:two_walls test_chain:reverses"),
    Fault("refusal: the chain stays outside", "chain", "return phase._replace(z=state.last_finite) if",
          "return phase if", "test_support:SGLD test_chain:reverses"),
    Fault("refusal: a draw outside", "chain", "if not self.integrator.evaluates_end:", "if False:",
          "test_support:wall"),
    # keys and counters
    Fault("products: ten bits of a GPU in a search", "sgmcmc", '"highest" if self', "None if self",
          "test_compiled:precision"),
    Fault("keys: of another type when a run is resumed", "state", 'fields["rng_key"] = _raw_key(fields["rng_key"])',
          "pass", "test_host:compiles_no_transition"),
    Fault("keys: one stream for steps and transitions", "state", "PROBE, TUNE, CENTRE, CHECK, EXCHANGE = range(9)",
          "PROBE, TUNE, CENTRE, CHECK, EXCHANGE = 0, 0, 2, 3, 4, 5, 6, 7, 8", "test_keys:twice"),
    Fault("keys: rows of the descent are those of the chain", "chains", "*random.split(key_descent)",
          "key_rows, key_descent", "test_keys:twice"),
    Fault("counter: past the range of an int32", "schedules", "jnp.where(large, LAST, i.astype(jnp.int32))",
          "i.astype(jnp.int32)", "test_keys:counter"),
    Fault("counter: a period starts again", "schedules", "+ behind)", "+ 0 * behind)", "test_keys:counter"),
    # what is told
    Fault("report: a run in the wrong order", "report_hook", 'np.asarray(packed)[:, 0, Monitor._fields.index("chain")]',
          "np.asarray(packed)[0, :, 0]", "test_report:bar"),
    Fault("run scores: c is the draw itself", "run_scores", "product = away * v", "product = (z - center) * v",
          "test_run_scores:no_bias"),
    Fault("run scores: one level for all coordinates", "run_scores", "(len(sizes) * (2 * size + (size > 1)))",
          "(2 * self.coordinates + 1)", "test_run_scores:levels"),
    Fault("run scores: correlations are ignored", "run_scores", "g @ jnp.where(known, self.scatter, eye)", "g",
          "test_run_scores:correlations"),
    Fault("run check: at every draw", "run_check", "scores.draws % period == 0", "scores.draws >= 0",
          "test_run_scores:twentieth"),
    Fault("run check: rows of the steps", "run_check", "getattr(self.chain.rows, \"independent\", False)", "True",
          "test_run_scores:twentieth"),
    Fault("block means: independent values", "block_means", "jnp.maximum(of_blocks, independent)", "independent",
          "test_block_means:stored"),
    Fault("block means: blocks of one length", "block_means", "GROWTH * length >= count", "length >= GROWTH",
          "test_block_means:stored"),
    Fault("report: nothing is hot", "statistics", "HOT, COLD = 2.0", "HOT, COLD = 1e9", "test_report:take_up"),
    Fault("report: always hot", "statistics", "HOT, COLD = 2.0", "HOT, COLD = 0.2", "test_report:right"),
    Fault("fingerprint: shapes alone", "arrays", " + values.tobytes()", "", "test_report:other"),
    # latent sites of the rows
    Fault("sum: the scale inside of the logarithm", "replay", "scale = scale * len(rows) / size", "pass",
          "test_local:unbiased"),
    Fault("sum: over all rows at once", "replay", "if k not in dims", "", "test_local:is_the_marginal"),
    Fault("sum: of the inner plates none", "replay", "if k not in dims", "if False",
          "test_local:is_the_marginal"),
    Fault("local: constrained values held fixed", "models", "log_dets.append(log_det)", "log_dets.append(0 * log_det)",
          "test_local:support"),
    Fault("local: gradient through the draws", "models", "jax.tree.map(lax.stop_gradient, sampler.draw(",
          "(sampler.draw(", "test_local:noise_are_those"),
    Fault("local: a support that moves taken for fixed", "models", "or moves(fn.support)", "or False",
          "test_local:support"),
    Fault("local: all through unconstrained coordinates", "models", 'getattr(self.local, "on_real_line", True)', "True",
          "test_visits:sparse"),
    Fault("local: values on the boundary", "models", "jnp.maximum(value, limits.tiny)", "value",
          "test_visits:sparse"),
    Fault("local: any values of a function", "models", "jnp.where(possible, inside, jnp.nan)", "inside",
          "test_local:out_of_the_support"),
    Fault("visits: begun at the prior", "models", "axis_of_rows(seen, x), x", "axis_of_rows(0 * seen, x), x",
          "test_visits:law_of"),
    Fault("constants: a copy in each loop", "constants", "lax.optimization_barrier(x) if", "x if", "test_constants"),
    Fault("visits: refused steps write", "in_place", "jnp.where(where, units, len(t))", "units",
          "test_visits:writes_nothing"),
    Fault("visits: rows not marked as seen", "minibatch", "jnp.ones_like(before.seen)", "before.seen",
          "test_visits:were_visited"),
    Fault("local HMC: everything accepted", "moves",
          "jnp.log(random.uniform(key_accept, change.shape)) < -change", "change < jnp.inf",
          "test_local:noise_are_those"),
    Fault("local moves: the first one alone is watched", "moves", "lax.scan(move, start, jnp.arange(self.moves))",
          "lax.scan(move, start, jnp.arange(1))", "test_local:summary_has"),
    Fault("local moves: rows that have rejected one", "local_checks", "accepted.any(0)", "accepted.all(0)",
          "test_local:summary_has"),
    Fault("local memory: two ends of one start", "local_checks",
          "(chain(potential, z, rows, key) for key in keys)",
          "(chain(potential, z, rows, key) for key in keys[:1] * 2)",
          "test_local:memory"),
    Fault("local memory: slope on the ends", "local_checks", "slope = mixed.mean(0) / squares.mean(0)",
          "slope = mixed.mean(0) / ends.mean(0) ** 2", "test_local:memory"),
    Fault("local memory: one visit for all", "local_checks",
          "return max(float(self.run.steps.min()) * batch / size, 1.0)",
          "return 1.0", "test_local:memory"),
    Fault("compare: right with few draws", "comparison", "not largest <= UNCERTAIN", "False", "test_compare:too_few"),
    Fault("arguments: only Python's numbers are no array", "argument_checks", "NUMBERS = int, float, str, np.generic",
          "NUMBERS = int, float, str", "test_data_checks:numpy_numbers"),
    Fault("condition: the first rows", "given_values", "return jnp.take(value, rows, axis=dim) if",
          "return jnp.take(value, jnp.arange(len(rows)), axis=dim) if", "test_handlers:write_instead or two_plates"),
    Fault("obs_mask: missing values may be used", "row_checks", "if used.startswith(MISSING)", "if False",
          "test_handlers:are_used"),
    Fault("obs_mask: missing values are latent", "given_values", "not self.imputes and is_missing(msg)", "False",
          "test_handlers:are_left_out or discrete_site"),
    Fault("do: scaled twice", "given_values", 'if plates and "_intervener_id" in msg', "if False",
          "test_handlers:would_be_wrong"),
    Fault("scale: weights of all rows for one", "structure",
          "if scale is None or not jnp.ndim(scale) else density * scale", "", "test_handlers:not_indexed"),
    Fault("scope: all rows on disk", "handlers", "array[rows_of(plate)]", "array[jnp.arange(len(array))]",
          "test_handlers:scope_on_disk"),
    Fault("costs: all rows of a sparse matrix", "minibatched", "except row_checks.SparseRows:\n                raise",
          "except ZeroDivisionError:\n                raise", "test_costs:without_a_batch_size"),
    Fault("costs: a sparse matrix that is closed over", "row_checks", "cut.largest >= plate.batch_size * matrix.nse",
          "cut.largest < 0", "test_costs:without_a_batch_size"),
    Fault("start: a gradient that is not finite", "new_state", "if in_memory else {}", "if False else {}",
          "test_errors:gradient_that_is_not_finite"),
    Fault("curvature: the gradient in place of the product", "curvature", "transposed(v)[0]", "transposed(value)[0]",
          "test_curvature"),
    Fault("costs: a sparse matrix passes", "row_checks", "use.argument.startswith(name)", "False",
          "test_costs:not_apart"),
    Fault("costs: never of all rows", "before_start", "use.numbers > FEW and size in use.shape", "False",
          "test_costs:before_they_are_indexed"),
    Fault("codes: columns of codes count as one", "dataflow",
          'if eqn.params["slice_sizes"][1:] == eqn.invars[0].aval.shape[1:]:', "if True:", "test_data_checks:codes"),
    Fault("codes: slices count as all columns", "dataflow",
          "eqn.primitive is prim.slice_p and eqn.invars[0].aval.ndim > 1", "False", "test_data_checks:codes"),
    Fault("codes: filled ones refused", "dataflow", "(GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP)", "()",
          "test_data_checks:codes"),
    Fault("codes: any choice of negative ones is an index", "dataflow",
          "negative, shifted = mask.negative_of, other.shifted_from", "negative = shifted = mask.negative_of",
          "test_data_checks:codes"),
    Fault("values: only the first part is looked at", "data_values", "for first in range(0, len(x), rows))",
          "for first in (0,))", "test_data_checks:support or not_finite"),
    Fault("values: a mask does not count", "structure", "not is_masked(fn) and not moves", "not moves",
          "test_data_checks:support"),
    Fault("codes: from the end refused", "data_values", "low < -size", "low < 0", "test_data_checks:codes"),
    Fault("codes: missing categories pass", "data_values", "if low < 0 <= high:", "if False:",
          "test_data_checks:missing_categories"),
    Fault("integers: of any size", "data_values", "if low < bounds.min or high > bounds.max:", "if False:",
          "test_data_checks:64_bits"),
    Fault("single rows: each half twice", "single_rows", "for rows in (batches, halves)",
          "for rows in (halves[::2], halves)", "test_data_checks:each_other"),
    Fault("plates: two sizes", "handlers", 'self.declared[msg["name"]][0] != size:',
          "False:", "test_data_checks:two_sizes"),
    Fault("finite rows: the first minibatch alone", "data_values", "jnp.maximum(last, wrong[0])", "last",
          "test_data_checks:not_finite"),
    Fault("finite rows: the energy alone", "data_values", "if sites or not gradient:", "if sites:",
          "test_data_checks:not_finite"),
    Fault("local moves: never told", "before_start", "> FEW_MOVES", ">= 0", "test_local:is_told"),
    Fault("local moves: told if one in four is accepted", "before_start", "FEW_MOVES = 0.01", "FEW_MOVES = 0.3",
          "test_local:is_told"),
    Fault("visits: a table of other rows", "minibatch", "if len(visits.seen) != plate.size", "if False",
          "test_visits:other_rows"),
    Fault("local Gibbs: from the prior", "moves", "jax.vmap(density_at)(support)", "0 * jax.vmap(density_at)(support)",
          "test_local:sweeps"),
    # recipes
    Fault("skew: a part that is symmetric", "overdamped", "z - h * around", "z - h * (around + 0.1 * z)",
          "test_skew:law"),
    Fault("skew: momentum turned to first order", "skew", "jnp.exp(1j * jnp.asarray(self._angles, flat.dtype) * angle)",
          "1 + 1j * jnp.asarray(self._angles, flat.dtype) * angle", "test_skew:turned or law"),
    Fault("recipe: no divergence", "recipe", "drift = drift + divergence(matrix_at, x, signs, self.exact)", "pass",
          "test_recipe_laws:of_the_position"),
    Fault("recipe: half the noise", "recipe", "D.scaled(2 * h)", "D.scaled(h)",
          "test_recipe_laws test_simplex:sgrld"),
    Fault("recipe: matrices at the origin", "recipe", "value = given(phase) if", 
          "value = given(jax.tree.map(jnp.zeros_like, phase)) if",
          "test_recipe_laws:left_out_is_seen"),
    Fault("recipe: carried from the wrong place", "splitting", "self._kicks[0] <= self._moves[0]",
          "self._kicks[0] < self._moves[0]", "test_recipe:one_gradient"),
    Fault("recipe: noise of each letter", "splitting", "inputs.append(of_step)",
          "inputs.append(noise.normal_like(jax.random.fold_in(rng_key, len(evaluations)), dynamics.noise_like(phase)))",
          "test_recipe_laws:momentum test_recipe:rows_of_the_table"),
    Fault("recipe: noise taken out of D alone", "matrices", "added.at[block.rows].add(block.value**2 *",
          "added.at[block.rows].add(block.value *", "test_recipe:taken_out"),
    Fault("recipe: noise taken out of the wrong rows", "matrices", "(self.dense() + Q.dense())[:, z]",
          "self.dense()[:, z]", "test_recipe:taken_out"),
    Fault("recipe: D not checked under way", "matrices", "jnp.where(asymmetric | outside, jnp.nan, root)", "root",
          "test_recipe:goes_wrong"),
    Fault("recipe: Q not checked under way", "recipe",
          "jnp.where(not_skew, jnp.nan, product)",
          "product", "test_recipe:goes_wrong"),
    Fault("divergence: columns", "divergence", "out.at[block.rows].add(pull_back(unit)[0][block.columns])",
          "out.at[block.columns].add(pull_back(unit)[0][block.rows])", "test_recipe_laws:momentum"),
    Fault("divergence: of scalars", "divergence", ".add(pull_back(unit)[0][block.columns])",
          ".add(1.05 * pull_back(unit)[0][block.columns])", "test_recipe_laws:unbiased"),
    Fault("divergence: of half the signs", "divergence", "else along(signs))", "else along(signs) / 1.05)",
          "test_recipe_laws:unbiased"),
    Fault("SGRHMC: root", "metrics", 'return {("momentum", "z"): root.T}',
          'return {("momentum", "z"): root.T * root.T}',
          "test_recipe:without"),
    Fault("Fisher: rows not scaled", "metrics", "scale * (g * g).sum(0)", "(g * g).sum(0)",
          "test_recipe:fisher_metric"),
    Fault("Energy: offset", "metrics", "potential.estimate(z, rows) + self.offset", "potential.estimate(z, rows)",
          "test_recipe:energy_metric"),
    # the simplex
    Fault("SCIR: decay", "scir", "jnp.exp(z - r * h - log_c)", "jnp.exp(z - 1.05 * r * h - log_c)",
          "test_simplex:transition or rate"),
    Fault("SCIR: a rate that is not used", "scir", "self.rate.get(name, 1.0)", "1.0",
          "test_simplex:conditional"),
    Fault("SCIR: one count more", "scir", "jnp.where(valid, b, 1.0)", "jnp.where(valid, b + 1.0, 1.0)",
          "test_simplex:transition or mixture"),
    Fault("SCIR: the sum spread evenly", "scir", "* jax.nn.softmax(z[name])", "/ z[name].shape[-1]",
          "test_simplex:mixture or shares"),
    Fault("SCIR: counts", "scir", "r * jnp.exp(z) - g, z", "1.05 * r * jnp.exp(z) - g, z",
          "test_simplex:minibatches or simplex_is_exact"),
    Fault("SCIR: noise of a large mean", "noise", "jnp.round(mean + jnp.sqrt(mean)", "jnp.round(mean + mean",
          "test_simplex:noncentrality"),
    Fault("natural: Jacobian", "simplex", "+ (x if self.log else jnp.zeros_like(x))", "+ jnp.zeros_like(x)",
          "test_simplex:near_zero or natural"),
    Fault("simplex: the sum in the derivative", "simplex", "return shares(x) if self.raw else", "return",
          "test_simplex:simplex_is_exact"),
    Fault("simplex: not held above 0", "simplex", "return jnp.maximum(jnp.exp(x), jnp.finfo(x.dtype).tiny)",
          "return jnp.exp(x)", "test_simplex:below or sparse"),
    Fault("simplex: a number of exactly zero", "simplex", "return jnp.maximum(value, jnp.finfo(value.dtype).tiny)",
          "return value", "test_simplex:exactly_zero"),
    # rows on disk
    Fault("on disk: a block's first rows again", "read_ahead", "values[k] for values", "values[0] for values",
          "test_on_disk:draws_are"),
    Fault("on disk: the rows of the block before", "read_ahead", "for first in (0, number)", "for first in (number, 0)",
          "test_on_disk:draws_are"),
    Fault("on disk: nothing is found again", "read_ahead", "self._waiting[_key(after)] =", "self._waiting[()] =",
          "test_on_disk:pieces"),
    Fault("on disk: new memory for each block", "read_ahead", "self._free.append(block)", "pass",
          "test_on_disk:pieces"),
    Fault("on disk: a search of scattered rows", "search", "Reshuffled(contiguous=contiguous)", "Reshuffled()",
          "test_on_disk:self_tuning_run_reads"),
    Fault("on disk: a descent of scattered rows", "start", "if contiguous else", "if False else",
          "test_on_disk:self_tuning_run_reads"),
    Fault("on disk: found by first rows alone", "read_ahead", "or not np.array_equal(ahead[0], now)", "",
          "test_on_disk:found_by"),
    Fault("on disk: from the start of a block", "sources", "together[rows.start - begin : rows.stop - begin]",
          "together[: rows.stop - rows.start]", "test_on_disk:sources_give"),
    Fault("on disk: missing numbers of lists", "sources", "or flat.null_count", "", "test_on_disk:keep_its_word"),
    Fault("on disk: blocks of any length", "sources", "if block.shape != shape or", "if", "test_on_disk:keep_its_word"),
    Fault("bar: the pace since the start", "progress_bar", "(steps - last[1]) * batch", "steps * batch",
          "test_report:of_rows"),
    Fault("bar: 32 bits of steps", "progress_bar", " + 2**32 * int(wraps)", "", "test_report:of_rows"),
    Fault("on disk: a run is cut short", "on_disk", "append=rows.size)", "append=rows.size - 1)",
          "test_on_disk:rows_are or pieces"),
    Fault("on disk: rows below 0", "on_disk", "rows + len(self), rows", "rows, rows", "test_on_disk:rows_are"),
    Fault("on disk: a subsample of the first row", "handlers", "array[rows_of(plate)]", "array[rows_of(plate) * 0]",
          "test_on_disk:subsample"),
    # rows spread over devices
    Fault("sharded: rows of the device beside", "sharded", "rows.reshape(self.devices, -1)",
          "jnp.roll(rows.reshape(self.devices, -1), 1, 0)", "test_sharded:draws"),
    Fault("sharded: plain lookups", "sharded", "if not served:", "if True:",
          "test_sharded:four_devices[exchange] or lookups"),
    Fault("sharded: one key for all devices", "schemes", "self.rows(random.fold_in(rng_key, k), t",
          "self.rows(rng_key, t", "test_sharded:rows_of_its_own"),
    Fault("sharded: the rows of the first device", "schemes", "return first + self.rows", "return self.rows",
          "test_sharded:rows_of_its_own"),
    Fault("sharded: a pass over one device", "full_pass", "rows[name] = shares.rows(places)",
          "rows[name] = shares.rows(places) % shares.longest", "test_sharded:devices"),
    Fault("sharded: a pass counts the filling", "full_pass", "if devices * n * count > shares.size:", "if False:",
          "test_sharded:devices"),
    Fault("sharded: no weights", "chain", "row_weights(self.rows, potential.plates)", "{}",
          "test_sharded:weighted"),
    Fault("sharded: weights of the other shares", "shares", "np.repeat(shares,", "np.repeat(shares[::-1],",
          "test_sharded:unequal"),
    # the loop
    Fault("loop: a step too few", "loop", "carry[0][0] < times", "carry[0][0] < times - 1", "test_loop"),
    Fault("loop: a call whatever the size", "loop", ">= LARGE", ">= 0", "test_loop"),
    Fault("loop: tables count", "loop", "IN_PLACE + MASKS", "()", "test_loop"),
    # models
    Fault("crossed plates: the scale of the third", "potential", 'site["scale"] * log_prob',
          '(site["scale"] if len(site["cond_indep_stack"]) < 3 else 1) * log_prob', "test_potential:three"),
    Fault("crossed plates: rows shared by the second and the third", "schemes", "random.fold_in(state.rng_key, p)",
          "random.fold_in(state.rng_key, min(p, 1))", "test_potential:three"),
    Fault("deterministic sites of one minibatch", "potential", "self.structure.left_out + self.structure",
          "self.structure", "test_potential:left_out"),
    Fault("another transform ignored", "handlers", "given_transform(name, fn, transforms) or", "",
          "test_potential:transform"),
    Fault("Jacobian: not summed over the event", "handlers", "tuple(range(-event_dim, 0))", "()",
          "test_potential:another_transform"),
    Fault("Jacobian: a latent of real numbers", "handlers", "elementwise(fn.support) is constraints.real", "True",
          "test_potential:transform or every_support"),
    Fault("scan: the first step's value for all", "handlers", "x = x[step]", "x = x[0]", "test_compat:scan"),
    Fault("lengths: longer arrays only", "row_checks", "length < size or (length > size and argument)",
          "length > size and argument", "test_rows_of_data"),
    Fault("lengths: shorter arrays only", "row_checks", "length < size or (length > size and argument)",
          "length < size", "test_rows_of_data"),
    Fault("lengths: computed rows taken for rows", "row_checks", "if not lookup.exact", "if False",
          "test_rows_of_data"),
    Fault("lengths: in a scan", "dataflow", "self.through(body, _of_one_step", "(body, _of_one_step",
          "test_rows_of_data"),
    Fault("an event of rows", "structure", "for shape in (own, values)", "for shape in (own, jnp.shape(log_prob))",
          "test_rows_of_data:event"),
    Fault("a copy for rows that are known", "arrays", "if not any(isinstance(part, Tracer) for part in parts)",
          "if False", "test_copies"),
    Fault("a copy for rows that do not matter", "potential", "with jax.ensure_compile_time_eval():", "if True:",
          "test_copies"),
    Fault("a copy for the outline", "arrays", "view._on_device = traced", "pass", "test_copies"),
]
# fmt: on


def place(fault, package):
    """The file of a fault, in this folder of the package."""
    (path,) = package.rglob(f"{fault.file}.py")
    return path


def planted(fault, package):
    """The file of a fault, and its text with the fault."""
    path = place(fault, package)
    pieces, at = path.read_text().split(fault.old), fault.where + 1
    assert len(pieces) > at, f"{fault.name}: {fault.file}.py has no such text any more"
    return path, fault.old.join(pieces[:at]) + fault.new + fault.old.join(pieces[at:])


def run(fault, tests, folder, arguments):
    """
    Outcome of each test in a copy of the project with this fault: name -> whether it failed.

    :param tests: their names.
    :param folder: where the copy is made. What one fault has compiled there serves the next.
    """
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    for part in ("numpyro_sgmcmc", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    path, text = planted(fault, copy / "numpyro_sgmcmc")
    path.write_text(text)
    if not any(_file(name) in LAWS for name in tests):
        arguments = ["-x", *arguments]  # only tests of laws must each be able to fail

    report = copy / "report.xml"
    ids = [f"{_path(_file(name))}::{name.partition('::')[2]}" for name in tests]
    # `python -m` puts the folder of the copy first on the path
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", f"--junitxml={report}", *arguments, *ids]
    environment = os.environ | CACHE | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    subprocess.run(command, cwd=copy, capture_output=True, env=environment)
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        outcomes[name] = case.find("failure") is not None or case.find("error") is not None
    return outcomes


def selected(fault, names):
    """
    The tests that a fault names.

    :raises AssertionError: a word that names no test.
    """
    tests = {}
    for entry in fault.tests.replace(" or ", "|").split():
        file, _, words = entry.partition(":")
        own = [name for name in names if _file(name) == file]
        for word in words.split("|"):
            found = [name for name in own if word.lower() in name.partition("::")[2].lower()]
            assert found, f"{fault.name}: {file} has no test {word!r}"
            tests |= dict.fromkeys(found)
    return list(tests)


def _file(name):
    return name.partition("::")[0]


def _path(file):
    """The path of a file of tests, in whatever folder."""
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    return path.relative_to(ROOT)


def names_of_tests():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [line.partition("::") for line in listed.splitlines() if "::" in line]
    return [f"{Path(path).stem}::{name}" for path, _, name in paths]


def changed(revision):
    """The files of the package that are not as they were then."""
    command = ["git", "diff", "--name-only", revision, "--", "numpyro_sgmcmc"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {ROOT / line for line in listed.splitlines()}


def main(args):
    failed = json.loads(args.out.read_text()) if args.resume and args.out.exists() else {}
    faults = [fault for fault in FAULTS if args.only in fault.name and fault.name not in failed]
    if args.since:
        files = changed(args.since)
        faults = [fault for fault in faults if place(fault, ROOT / "numpyro_sgmcmc") in files]
    names = names_of_tests()
    tests = {fault.name: selected(fault, names) for fault in faults}
    for fault in faults:
        planted(fault, ROOT / "numpyro_sgmcmc")
    if args.check:
        print(f"{len(faults)} faults can be planted.")
        return
    folders = Queue()

    def one(fault):
        folder = folders.get()
        try:
            return fault, run(fault, tests[fault.name], folder, shlex.split(args.pytest))
        finally:
            folders.put(folder)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        for k in range(args.jobs):
            folders.put(Path(folder) / str(k))
        running = [pool.submit(one, fault) for fault in faults]
        for done in tqdm(as_completed(running), desc="faults", total=len(running)):
            fault, outcomes = done.result()
            failed[fault.name] = sorted(name for name, fails in outcomes.items() if fails)
            tqdm.write(f"{fault.name}: {len(failed[fault.name])} of {len(outcomes)} tests fail")
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(failed, indent=1) + "\n")
    laws = {name for name in names if _file(name) in LAWS and not any(word in name for word in ERRORS)}
    idle = [] if args.only or args.since else sorted(laws - set().union(*failed.values()))
    survivors = [name for name, tests in failed.items() if not tests]
    print(f"{len(failed)} faults; not caught: {', '.join(survivors) or 'none'}.")
    print("Tests of laws that no fault fails: " + ("none." if not idle else "\n  " + "\n  ".join(idle)))
    sys.exit(bool(survivors or idle))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains it")
    parser.add_argument("--since", metavar="REVISION", help="faults in files that have changed since then")
    parser.add_argument("--check", action="store_true", help="see that the faults and their tests exist, run nothing")
    parser.add_argument("--resume", action="store_true", help="leave out the faults that --out knows")
    parser.add_argument("--out", type=Path, default=Path("out/mutations.json"))
    parser.add_argument("--jobs", type=int, default=2, help="faults that are tried at the same time")
    parser.add_argument("--pytest", default="", metavar="ARGUMENTS")
    main(parser.parse_args())
