"""The posteriors that ``answer.py`` asks for: a model, its data, and the sites that are compared."""

from collections.abc import Callable
from pathlib import Path
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import datasets  # noqa: E402
from hierarchy_models import HIERARCHIES, bernoulli_rows, binary  # noqa: E402
from logistic_regression import simulate  # noqa: E402
from no_numbers_models import PROBLEMS, Problem, logistic  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402

BATCH = 1000


def a9a():
    """Logistic regression on a9a: 32 561 rows, 123 binary columns and an intercept."""
    X, y, *_ = datasets.parts("a9a")
    X, y = datasets.with_intercept(X.astype(np.float32)), datasets.is_class_one("a9a", y)
    order = np.random.default_rng(0).permutation(len(X))
    return Problem("a9a", logistic, (X[order], y[order]), ("w",), BATCH, "", {})


def simulated():
    """Logistic regression: a million rows, 20 correlated columns of unlike scale."""
    data = simulate(1_000_000, 20, seed=0)
    return Problem("simulated", logistic, (data.X, data.y), ("w",), BATCH, "", {})


def covertype():
    """Logistic regression on data shaped like covertype: 50 000 rows, 10 columns and two factors of 44 levels."""
    return PROBLEMS["covtype_like"]()


def counts():
    """Poisson counts with exposure: 20 000 rows in 300 unequal groups; the effects are not compared."""
    return HIERARCHIES["counts_exposure"]()._replace(sites=("mu", "tau", "slope"))


def of_groups(groups):
    """The hierarchy of NumPyro issue 2225; its effects are not compared, and the kernel chooses the batch size."""
    rows = binary(np.random.default_rng(groups), groups, 100_000)
    args = tuple(np.asarray(x, np.int32) for x in rows)
    model = lambda group, y: bernoulli_rows(groups, group, y)  # noqa: E731
    return Problem(f"groups_{groups}", model, args, ("mu", "tau"), None, "", {"start": "uniform", "decentre": ("a",)})


def groups_900():
    """A hierarchy: 100 000 binary rows in 900 groups, as written in NumPyro issue 2225."""
    return of_groups(900)


def groups_15000():
    """A hierarchy: 100 000 binary rows in 15 000 groups, as written in NumPyro issue 2225."""
    return of_groups(15_000)


def responses():
    """Item response: 60 000 answers of 2000 people to 30 items; mean and spread of the items' difficulty."""
    return HIERARCHIES["responses_2000"]()._replace(sites=("spread", "level"))


def mixture():
    """A mixture of three normals: 20 000 rows."""
    return PROBLEMS["mixture"]()


POSTERIORS: dict[str, Callable[[], Problem]] = {
    make.__name__: make for make in (a9a, simulated, covertype, counts, groups_900, groups_15000, responses, mixture)
}


class AllRows:
    """An array whose rows are all taken at once: the array itself, which NUTS would otherwise copy at each gradient."""

    def __init__(self, array: Any):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> Any:
        return self.array if np.shape(rows) == (len(self.array),) else self.array[rows]


def with_all_rows(model: Callable) -> Callable:
    """The model for samplers that use all rows."""
    return lambda *args: model(*map(AllRows, args))


class Subsample(numpyro.primitives.Messenger):
    """The plate ``"rows"`` of a model with a subsample of a given size."""

    def __init__(self, fn: Callable, size: int):
        super().__init__(fn)
        self.size = size

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "plate" and msg["name"] == "rows":
            msg["args"], msg["value"] = (msg["args"][0], self.size), None
