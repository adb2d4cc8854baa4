r"""
Test error against passes: Bayesian linear regression
=====================================================

Does variance reduction bring stochastic gradient Langevin dynamics to a given test error in fewer passes through the
data? SGLD with decreasing steps, SAGA-LD and SVRG-LD with two constant ones, minibatches of 10 rows: the experiment of
Dubey et al. (2016), section 5.1 and figure 1, and next to it what variance reduction does at a constant step size.
"""

# %%
# The results
# -----------
# **At a constant step size** (the last two panels) variance reduction works. The gradients of SAGA-LD and SVRG-LD have
# a much smaller variance than those of SGLD. Where plain minibatches make the posterior much too wide, these two hardly
# change it. The program asserts this where the numbers are known well enough, which excludes kegg_undirected. There a
# few very long rows determine both the variance and the step size. Minibatches are stable only at steps 50 times
# smaller than the curvature allows, and at larger steps SAGA-LD is much noisier than SGLD.
#
# **The test error** (the other panels) is another matter. The paper reports that SAGA-LD converges much faster on all
# of its data, in many cases within one pass. In general that is not reproduced here. With the same effort in tuning,
# the decreasing steps of SGLD reduce the error as fast or faster at first, because the table of SAGA-LD still holds
# gradients from the start. Only on bike is there a gain with both seeds. SAGA-LD reaches the final error of SGLD after
# 2.8 passes, and SGLD itself reaches it after 4.7 of 5. SAGA-LD ends lower by three standard errors. (With another
# seed, 1, the passes are 2.6 and 4.2, and the difference is also three standard errors.) On concrete, airfoil and
# parkinsons SAGA-LD ends lower by one standard error or less, and the seed decides which of the two reaches that error
# first. On concrete SAGA-LD needs 2.3 passes and SGLD 2.9, but with the other seed SGLD needs 2.0 and SAGA-LD 2.9. On
# kegg_undirected SAGA-LD ends higher, by 2.2 standard errors. SVRG-LD, which pays for its passes, ends higher or level.
# All numbers are printed and saved in metrics.json. Nothing is asserted about them.
#
# The result depends on the grid of settings. SGLD often takes the fastest decrease or the largest first step of the
# grid (in 3 folds of 5 on airfoil, 2 on bike), so its errors may not be the lowest that it can reach.
#
# The protocol
# ------------
# The protocol is that of the paper, as far as the paper describes it: linear regression, a standard normal prior, and
# splits into 70 % training, 10 % validation and 20 % test rows. All samplers have the same start, the same minibatches
# and the same noise. Our own choices are the variance of y, 1, standardised columns and y, five random splits, and a
# start drawn from the prior. The steps of SGLD are :math:`a (b + t)^{-c}`, and SAGA-LD and SVRG-LD have two phases with
# constant steps. Each sampler has 54 candidates, nine first step sizes with six ways to continue. The candidate with
# the smallest error on the validation part of the split is used. The error is that of single draws, averaged over the
# last tenth of the run. The test rows are used only once, at the end. The standard errors account for overlapping
# splits.
#
# SAGA-LD fills its table during the run, as in the paper. Until a row has been used, the mean over the used rows takes
# its place. (The weights of the paper would be biased.) SVRG-LD needs a pass over the data for each new anchor, and two
# gradients for each row of a minibatch. Its curve begins after its first pass, and ends where there is no time for
# another pass.
#
# With the constant step size, 200 chains start in the posterior, which is known in closed form. The step size is a
# tenth of the largest at which minibatches are stable, and it is the same for all samplers. The relative error of the
# posterior variance is the mean of (z - mean)' C^-1 (z - mean) / d, less one.

from gallery import save
import numpy as np
import numpyro
import numpyro.distributions as dist
from passes import Task, arguments, check, curvature, draw, metrics, report, study

# passes of the x axes of the paper's figure 1, where it has the set
BUDGETS = {"concrete": 3.0, "airfoil": 5.0, "parkinsons": 10.0, "bike": 5.0, "kegg_undirected": 3.0}


def model(X, y):
    w = numpyro.sample("w", dist.Normal().expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1.0), obs=y[rows])


def squared_error(eta, y):
    return (y - eta) ** 2


def posterior(X, y, rng_key):
    """In closed form."""
    del rng_key
    covariance = np.linalg.inv(curvature(TASK, X, np.zeros(X.shape[1])))
    return covariance @ (X.astype(float).T @ y), covariance, True


TASK = Task(model, squared_error, "test MSE", np.ones_like, posterior, labels=False, budgets=BUDGETS)


def main(args):
    results = study(TASK, args)
    report(results, TASK.score)
    save(args, "regression", draw(results, TASK.score), metrics(results))
    check(results, args)


if __name__ == "__main__":
    main(arguments(__doc__, BUDGETS))
