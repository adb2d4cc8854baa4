"""
The tables of docs/bias.md: ``python docs/scripts/bias.py`` writes them anew, in a few seconds.

The target is a normal distribution with standard deviation 1. There a step is a linear map plus noise, and its
stationary variance is computed exactly from the kernel's own code, without sampling.
"""

from pathlib import Path
import re

import numpy as np

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD
from numpyro_sgmcmc.diagnostics.linear_law import linear_law

PAGE = Path(__file__).resolve().parents[1] / "bias.md"
BATCHES = 100  # N / n, the number of minibatches in the data


def error(kernel, h, noise=0.0, friction=1.0, known=None, epoch=1):
    """Relative error of the variance, with gradient noise of variance ``noise``."""
    numbers = {"SGLD": {}, "SGHMC": {"friction": friction}, "MSGNHT": {"diffusion": friction}}
    name, _, word = kernel.partition(" ")
    made = {"SGLD": SGLD, "SGHMC": SGHMC, "MSGNHT": MSGNHT}[name](
        lambda: None, step_size=h, **numbers[name], **({"integrator": word} if word else {})
    )
    one = np.ones(1)
    law = linear_law(
        made.dynamics,
        made.integrator,
        h,
        one,
        noise * one,
        thermostat=friction + h * noise / 2 if name == "MSGNHT" else (),
        known=None if known is None else known * one,
        epoch=epoch,
    )
    return float((law.step + law.noise)[0])


def cell(value):
    if not np.isfinite(value):
        return "unstable"
    percent = 100 * value
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent + 0.0:+.1f} %".replace("-0.0", "+0.0")


def table(head, steps, lines):
    rows = [["", *(f"{head} = {h:g}" for h in steps)], ["---"] * (1 + len(steps))]
    rows += [[name, *(cell(of(h)) for h in steps)] for name, of in lines.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def tables():
    noisy = {"noise": BATCHES}
    return {
        "step": table(
            "h",
            (0.1, 0.3, 1.0, 1.5),
            {
                name: lambda h, name=name: error(name, h)
                for name in ("SGLD", "SGHMC euler", "SGHMC ssi", "SGHMC OBABO", "SGHMC BAOAB", "SGHMC ABOBA")
            },
        ),
        "noise": table(
            "h",
            (0.001, 0.01, 0.1, 0.3),
            {
                "`SGLD`, independent minibatches": lambda h: error("SGLD", h, **noisy),
                "`SGLD`, reshuffled": lambda h: error("SGLD", h, epoch=BATCHES, **noisy),
                "`SGHMC`, independent minibatches": lambda h: error("SGHMC ABOBA", h, **noisy),
                "`SGHMC`, reshuffled": lambda h: error("SGHMC ABOBA", h, epoch=BATCHES, **noisy),
                "`SGHMC`, friction 10 times larger": lambda h: error("SGHMC ABOBA", h, friction=10.0, **noisy),
                '`SGHMC(integrator="NOGIN")`': lambda h: error("SGHMC NOGIN", h, known=BATCHES, **noisy),
                "`MSGNHT`": lambda h: error("MSGNHT", h, **noisy),
                "`SGHMC` with a control variate, s² = 0.1": lambda h: error("SGHMC ABOBA", h, noise=0.1),
            },
        ),
    }


def page():
    text = PAGE.read_text()
    for name, written in tables().items():
        pattern = rf"(<!-- {name}: written by bias.py -->\n\n)(?:(?!<!--).)*?(\n\n<!-- end -->)"
        text, count = re.subn(pattern, rf"\g<1>{written}\g<2>", text, flags=re.DOTALL)
        assert count == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
