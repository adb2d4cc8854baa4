"""
Configuration of Sphinx; ``make docs`` writes docs/_build/html.

The gallery is executed with ``--fast`` by default, which takes some minutes; ``make docs GALLERY=`` runs it in full.
"""

import os
from pathlib import Path

from numpyro_sgmcmc import __version__

HERE = Path(__file__).resolve().parent

project = "numpyro_sgmcmc"
author = copyright = "the authors of numpyro_sgmcmc"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
html_theme = "sphinx_rtd_theme"
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing", "config.cache"]  # pages link to files of the repository
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def arguments(gallery_conf, script_vars):
    """The command line of a program of the gallery."""
    name = Path(script_vars["src_file"]).stem.removeprefix("plot_")
    return [*os.environ.get("GALLERY", "--fast").split(), "--out", str(HERE / "_build" / "out" / name)]


sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)\w+\.py$",
    "reset_argv": arguments,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}
