"""
Hierarchies, written either way
===============================

The effects of groups can be written centred, ``a ~ Normal(mu, tau)``, or non-centred, ``a = mu + tau * z``. For NUTS
the user must choose the form that suits the data, and if some groups have many rows and others few, neither does.
``SGHMC(model)`` chooses for each group: the share :math:`\\lambda` of its rows in what is known about its effect. Here
are models from ``hierarchy_models.py``: groups of 2 to 500 rows, 500 groups of 4 rows, 50 of 1000, counts, binary
outcomes, crossed and nested effects, varying slopes, item response, series in time. Where there are two forms, both are
run, ours and NUTS on all rows.
"""

from gallery import save, shown
from hierarchy_models import HIERARCHIES
import matplotlib.pyplot as plt
import numpy as np
from plot_no_numbers import RIGHT, SILENT, WARNED, arguments, check as check_told, is_told, is_wrong, studies

BY_HAND = "_by_hand"
FAST = "sizes", f"sizes{BY_HAND}"
DIFFERENT = 0.1  # of a lambda: more is not the same choice

# %%
# The choice
# ----------
# Both forms end in the same variables, whatever the model says. In the example with groups of all sizes, lambda goes
# from 0 to 1 with the number of rows.


def draw_choice(axes, results):
    group, _ = HIERARCHIES["sizes"]().args
    rows = np.bincount(group)
    for name, site, marker in (("sizes", "a", "o"), (f"sizes{BY_HAND}", "z_a", "x")):
        if name not in results:
            continue
        share = results[name][0]["centering"][site]
        label = "written centred" if site == "a" else "written non-centred"
        axes.plot(rows, share, marker, ms=6, mfc="none", color=RIGHT if site == "a" else WARNED, label=label)
    axes.set(xscale="log", xlabel="rows of a group", ylabel="lambda: 0 non-centred, 1 centred", ylim=(-0.05, 1.05))
    axes.legend(frameon=False)


# %%
# All models
# ----------
# The error of each mean, in standard deviations by NUTS, and of each standard deviation; and the steps of a draw.


def draw_errors(axes, results):
    for k, (found, errors) in enumerate(results.values()):
        colour = RIGHT if not is_wrong(found) else WARNED if is_told(found) else SILENT
        for what, offset in (("mean", 0.15), ("sd", -0.15)):
            x = np.nan_to_num(errors[what], posinf=9.0, neginf=-9.0).clip(-1, 1)
            axes.plot(x, np.full(len(x), k + offset), "|", ms=6, color=colour, alpha=0.3)
        axes.text(0.97, k, found["settings"]["steps_per_sample"], ha="right", va="center")
    axes.axvspan(-0.2, 0.2, color="0.93", lw=0)
    axes.set_yticks(range(len(results)), results, fontsize=8)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set(xlim=(-1, 1), xlabel="errors: means in sds (below), sds (above); right: steps of a draw")


def draw_speed(axes, results):
    for k, (found, _) in enumerate(results.values()):
        ours = found["smallest_ess"] / found["seconds"]
        nuts = found["nuts"]["smallest_ess"] / found["nuts"]["seconds"]
        axes.plot(ours, k, "o", ms=5, color=RIGHT)
        axes.plot(nuts, k, "o", ms=5, mfc="white", mec="0.4")
    axes.set(xscale="log", xlabel="effective draws a second,\ncompilation included (white: NUTS)")
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(results)), [""] * len(results))
    axes.set_ylim(len(results) - 0.5, -0.5)


def draw(results):
    height = max(4.0, 1.5 + 0.22 * len(results))
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(14, height), width_ratios=(3, 4, 2), layout="constrained"
    )
    draw_choice(left, results)
    draw_errors(middle, results)
    draw_speed(right, results)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


# %%
# What is claimed
# ---------------
# That no line raises an error, that no draws are wrong without a warning, and that both forms of a model end in the
# same variables.


def check(results):
    check_told(results)
    for name in results:
        if name + BY_HAND not in results:
            continue
        centred, by_hand = results[name][0], results[name + BY_HAND][0]
        for site, share in centred["centering"].items():
            other = by_hand["centering"].get(f"z_{site}")
            assert other is not None, f"{name}: nothing was chosen for z_{site}"
            assert np.abs(np.subtract(share, other)).mean() < DIFFERENT, f"{name}: lambda of {site} differs"


def main(args):
    results = studies(HIERARCHIES, args.problems or (FAST if args.fast else HIERARCHIES), args)
    save(args, "hierarchies", draw(results), {"problems": {name: found for name, (found, _) in results.items()}})
    if shown(args):
        check(results)


if __name__ == "__main__":
    main(arguments(__doc__, HIERARCHIES))
