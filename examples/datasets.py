"""Real data for the programs of the gallery: found by name, split, standardised by their training part."""

import os
from pathlib import Path
import sys
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

# where to get what we ran on, and the SHA-256 of the archive; scikit-learn checks its own downloads
SOURCES = {
    "mnist": (
        'sklearn.datasets.fetch_openml("mnist_784", version=1); the first 60 000 rows train',
        "d2fc8bab397b964798b4c839bd1e705e10a4bb65f4d56a88002229d145796751",
    ),
    "a9a": (
        'sklearn.datasets.fetch_openml("a9a"), or the files a9a and a9a.t of LIBSVM\'s data page',
        "1dda86a965005de6f5cdf56a50351505710ebdaa8b41db19caff1131e753e6a9",
    ),
    "concrete": (
        "archive.ics.uci.edu/dataset/165",
        "1163f6cb9ed054d338b8b7449c92197e15fc6fc936eacfc78fe8ef0b3164774d",
    ),
    "airfoil": (
        "archive.ics.uci.edu/dataset/291",
        "6d0b7068cb756d9ba57ea4894cef9af335b1b1beebc1dfe77a857ea05c788ded",
    ),
    "parkinsons": (
        "archive.ics.uci.edu/dataset/189",
        "61d2c068713f94505a18a47dc32a1ba507ea8934eda0f601c9aaebc78cc4fcc9",
    ),
    "bike": (
        "archive.ics.uci.edu/dataset/275, hour.csv",
        "cec925a4b33cf7aaabb49e7e0158d58809ebe0d7f6264f9480e2d947ed6fd747",
    ),
    "kegg_undirected": (
        "archive.ics.uci.edu/dataset/221",
        "8fd07748cc7e9eeb118bc44984508f06a1f78477cd1d0c0292c2a98b54f922a8",
    ),
    "pima": (
        'sklearn.datasets.fetch_openml("diabetes", version=1)',
        "5347f059dbf077777e7ae2bb6936fbb026df28e5501e196164ff7d4f080953f1",
    ),
    "diabetic_retinopathy": (
        "archive.ics.uci.edu/dataset/329",
        "20073b0a945930f114892dc6107ff85ee443adec085710620d288c5689cfcf3a",
    ),
    "shuttle": (
        "archive.ics.uci.edu/dataset/148, or sklearn.datasets.fetch_openml(data_id=40685)",
        "2070fb838cd8ce6a77f5dee4c0bf61aa93456963918648ce6baf69d294f56e26",
    ),
    "eeglab_sample": (
        "github.com/sccn/eeglab, sample_data/eeglab_data.set and .fdt",
        "e2bd89a0e188dd737cd1fabb9d9616c820133519e88300a36f845166013b1f7b",
    ),
}

# columns that reveal the target
LEAKS = {"parkinsons": ("motor_UPDRS",)}


class Split(NamedTuple):
    """Standardised by the training part; ``y`` too, where it is asked for."""

    X: np.ndarray
    y: np.ndarray
    X_valid: np.ndarray
    y_valid: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def search_path(folder=None):
    """The folders that are searched, in order."""
    folders = [folder] if folder else []
    if "NUMPYRO_SGMCMC_DATA" in os.environ:
        folders.append(os.environ["NUMPYRO_SGMCMC_DATA"])
    folders += [Path.cwd().parent / "shared" / "data", Path(__file__).resolve().parents[2] / "shared" / "data"]
    return [Path(folder) for folder in folders]


def available(name, folder=None):
    return any((folder / f"{name}.npz").is_file() for folder in search_path(folder))


MATRIX = 'numpy.savez("{}.npz", X=X, y=y) or with X_train, y_train, X_test, y_test'  # how an archive is made
CORPUS = 'numpy.savez("{}.npz", indptr=indptr, indices=indices, counts=counts)'


def find(name, folder=None, made_by=MATRIX):
    """The path of ``name``.npz. If there is none, exit with a message on where to get the file and where to put it."""
    if folder and not Path(folder).is_dir():
        sys.exit(f"--data-dir {folder}: there is no such folder.")
    name = name.removesuffix(".npz")
    folders = search_path(folder)
    for candidate in (folder / f"{name}.npz" for folder in folders):
        if candidate.is_file():
            return candidate
    source, digest = SOURCES.get(name, ("", ""))
    sys.exit(
        f"{name}.npz was found in none of these folders:\n"
        + "".join(f"  {folder}\n" for folder in dict.fromkeys(map(str, folders)))
        + "Put it into one of them, or name another by --data-dir or by the variable NUMPYRO_SGMCMC_DATA. It is an\n"
        f"archive made by {made_by.format(name)}.\n"
        + (f"The data: {source}.\nOur archive has the SHA-256 {digest}.\n" if source else "")
        + "Without --data the program needs no file."
    )


def read(name, folder=None, made_by=MATRIX):
    """The arrays of ``name``.npz, all of numbers but for names of columns."""
    path = find(name, folder, made_by)
    try:
        with np.load(path) as archive:
            return dict(archive)
    except (ValueError, EOFError, TypeError, BadZipFile) as error:
        sys.exit(f"{path} is not an archive of arrays of numbers made by numpy.savez: {error}")


def parts(name, folder=None):
    """
    ``(X, y, X_test, y_test)``, the last two None without a canonical split; columns that reveal the target left out.
    """
    arrays = read(name, folder)
    if {"X_train", "y_train", "X_test", "y_test"} <= arrays.keys():
        X, y, X_test, y_test = (arrays[key] for key in ("X_train", "y_train", "X_test", "y_test"))
    elif {"X", "y"} <= arrays.keys():
        X, y, X_test, y_test = arrays["X"], arrays["y"], None, None
    else:
        sys.exit(f"{name}.npz holds {', '.join(arrays)}; this program needs X, y or X_train, y_train, X_test, y_test.")
    for X_part, y_part in ((X, y), (X_test, y_test)) if X_test is not None else ((X, y),):
        if X_part.ndim < 2 or y_part.shape != X_part.shape[:1]:
            sys.exit(
                f"{name}.npz has X of shape {X_part.shape} and y of shape {y_part.shape}; this program needs a matrix "
                "with a row, and a vector with a number, for each observation."
            )
    if name in LEAKS and "feature_names" in arrays:
        kept = ~np.isin(arrays["feature_names"], LEAKS[name])
        X, X_test = X[:, kept], None if X_test is None else X_test[:, kept]
    return X, y, X_test, y_test


def documents(name, folder=None):
    """
    ``(indptr, indices, counts)``: document i has the words ``indices[indptr[i]:indptr[i + 1]]``, numbered from 0, so
    often each. A training part is taken if there is one.
    """
    arrays = read(name, folder, CORPUS)
    part = "" if "indptr" in arrays else "_train"
    keys = [f"{key}{part}" for key in ("indptr", "indices", "counts")]
    if not arrays.keys() >= set(keys):
        held = ", ".join(arrays) or "no arrays"
        sys.exit(f"{name}.npz holds {held}; this program needs indptr, indices and counts.")
    for key in keys:
        if arrays[key].dtype.kind not in "iu" or arrays[key].ndim != 1:
            sys.exit(
                f"{name}.npz: {key} has dtype {arrays[key].dtype} and shape {arrays[key].shape}, but must be a vector "
                "of integers."
            )
    indptr, indices, counts = (arrays[key] for key in keys)
    if not (len(indptr) > 1 and indptr[0] == 0 and (np.diff(indptr) >= 0).all() and indptr[-1] == len(indices)):
        sys.exit(
            f"{name}.npz: {keys[0]} must rise from 0 to the length of {keys[1]}, {len(indices)}: document i has the "
            f"words {keys[1]}[{keys[0]}[i]:{keys[0]}[i + 1]]."
        )
    if counts.shape != indices.shape or (counts < 1).any():
        sys.exit(f"{name}.npz: {keys[2]} must hold a number, 1 or more, for each of the {len(indices)} {keys[1]}.")
    words = len(arrays["vocab"]) if "vocab" in arrays else np.inf
    wrong = np.flatnonzero((indices < 0) | (indices >= words))
    if len(wrong):
        document = np.searchsorted(indptr, wrong[0], "right") - 1
        allowed = "0 or more" if words == np.inf else f"0 to {words - 1}, as vocab has {words} words"
        sys.exit(f"{name}.npz: document {document} has the word {indices[wrong[0]]}, but must have words {allowed}.")
    return indptr, indices, counts


def is_class_one(name, y):
    """1 for class 1, 0 for all other classes."""
    if len(np.unique(y)) > 100 or not 0 < np.mean(y == 1) < 1:
        sys.exit(f"the y of {name}.npz are not class numbers with a class 1 among them.")
    return (y == 1).astype(np.float32)


def standardiser(X):
    """A function that subtracts the mean of each column of ``X`` and divides by its sd; it keeps binary columns."""
    mean, sd = X.mean(0, dtype=float), X.std(0, dtype=float)
    binary = ((X == 0) | (X == 1)).all(0)
    mean, sd = np.where(binary, 0, mean), np.where(binary | (sd == 0), 1, sd)
    return lambda X: ((X - mean) / sd).astype(np.float32)


def with_intercept(X):
    return np.hstack([np.ones((len(X), 1), np.float32), X])


def error_over_splits(values, train, test):
    """
    Standard error of a mean over random splits into parts of these sizes, ``values.shape=(splits, ...)``: with
    variance :math:`(1 / J + n_{test} / n_{train}) s^2` in place of :math:`s^2 / J`, for the parts of different splits
    overlap (Nadeau & Bengio 2003).
    """
    values = np.asarray(values, float)
    return np.sqrt(1 / len(values) + test / train) * values.std(0, ddof=1) if len(values) > 1 else values[0] + np.nan


def folds(name, folder=None, *, number=5, seed=0, shares=(0.7, 0.1, 0.2), labels=False):
    """
    Random splits into training, validation and test part, one :class:`Split` a fold, an intercept in front.

    :param tuple shares: of the rows. A canonical test part is kept; the rest is split in the ratio of the first two.
    :param bool labels: whether ``y`` is "class 1 or another" rather than a number to be standardised.
    """
    X, y, X_test, y_test = parts(name, folder)
    if labels:
        y, y_test = is_class_one(name, y), None if y_test is None else is_class_one(name, y_test)
    for fold in range(number):
        order = np.random.default_rng((seed, fold)).permutation(len(X))
        if X_test is None:
            cuts = np.cumsum(np.multiply(shares[:2], len(X))).astype(int)
            train, valid, test = np.split(order, cuts)
            test = X[test], y[test]
        else:
            train, valid = np.split(order, [int(len(X) * shares[0] / (shares[0] + shares[1]))])
            test = X_test, y_test
        scaled = standardiser(X[train])
        target = None if labels else standardiser(y[train][:, None])
        yield Split(
            *(
                array
                for rows, values in ((X[train], y[train]), (X[valid], y[valid]), test)
                for array in (
                    with_intercept(scaled(rows)),
                    np.asarray(values if labels else target(values[:, None])[:, 0], np.float32),
                )
            )
        )
