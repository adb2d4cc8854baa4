"""
Configuration of Sphinx; ``make docs`` writes docs/_build/html.

The gallery is executed with ``--fast`` by default, which takes some minutes; ``make docs GALLERY=`` runs it in full.
Warnings are errors. Among them are links that lead nowhere and public names without documentation. The doctest builder
runs the examples of the docstrings and the programs of the pages.
"""

import inspect
import os
from pathlib import Path
import re

import jax
from sphinx.util import logging

import numpyro_sgmcmc
from numpyro_sgmcmc import __version__

HERE = Path(__file__).resolve().parent
PROGRAMS = {"extend", "howto", "local", "neighbours"}  # pages whose code runs as printed

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
html_static_path = ["_static"]
html_css_files = ["wide.css"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the gallery's configuration holds a function
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def arguments(gallery_conf, script_vars):
    """The command line of a program of the gallery."""
    name = Path(script_vars["src_file"]).stem.removeprefix("plot_")
    return [*os.environ.get("GALLERY", "--fast").split(), "--out", str(HERE / "_build" / "out" / name)]


def reset_jax(gallery_conf, fname):
    """All programs of the gallery run in one process, and some of them change the settings of JAX."""
    for setting in ("jax_enable_x64", "jax_disable_most_optimizations"):
        jax.config.update(setting, False)
    jax.clear_caches()


sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)\w+\.py$",
    "within_subsection_order": "FileNameSortKey",
    "reset_argv": arguments,
    "reset_modules": ("matplotlib", reset_jax),
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}


def link_to_pages(app, docname, source):
    """Links to programs of the gallery, and to files of the repository that are pages of the site, lead to these."""
    text = re.sub(r"\]\(\.\./examples/(plot_\w+)\.py\)", r"](gallery/\1.rst)", source[0])
    source[0] = re.sub(r"\]\(\.\./(CONTRIBUTING|CHANGELOG)\.md\)", lambda m: f"]({m[1].lower()}.md)", text)


def run_programs(app, docname, source):
    """The code of these pages runs in the build; a block that sets the environment runs in a process of its own."""
    if docname not in PROGRAMS:
        return

    def tested(match):
        code = match[1]
        if not code.startswith("import os\n"):
            return f"```{{testcode}}\n{code}```"
        apart = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}], check=True)\n"
        return f"{match[0]}\n\n```{{testcode}}\n:hide:\n\n{apart}```"

    source[0] = re.sub(r"^```python\n(.*?)```", tested, source[0], flags=re.DOTALL | re.MULTILINE)


def check_public_names(app, env):
    """Every public name has a docstring and an entry in the reference."""
    documented = env.get_domain("py").objects
    warn = logging.getLogger(__name__).warning
    for name in (each for each in dir(numpyro_sgmcmc) if callable(getattr(numpyro_sgmcmc, each))):
        if f"numpyro_sgmcmc.{name}" not in documented:
            warn("numpyro_sgmcmc.%s is public and not in the reference: add it to docs/api.md", name)
        if not inspect.getdoc(getattr(numpyro_sgmcmc, name)):
            warn("numpyro_sgmcmc.%s is public and has no docstring", name)


def setup(app):
    app.connect("source-read", link_to_pages)
    app.connect("source-read", run_programs)
    app.connect("env-check-consistency", check_public_names)
