"""Imports run one way through the rooms of the package, and the inner rooms do not know NumPyro."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "numpyro_sgmcmc"
ROOMS = (
    "types utils schedules rows data model local potential gradients dynamics tuning checks report engine kernels runs "
    "diagnostics contrib"
).split()
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.stem in ROOMS]


def module_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path):
    """The modules that a file imports, at its top, in its functions or for a type checker alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def room_of(module):
    return (module + ".").split(".")[1]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room):
    for path in FILES:
        if room_of(module_of(path)) == room:
            ours = [name for name in imports_of(path) if name.startswith("numpyro_sgmcmc")]
            assert all(room_of(name) in ROOMS[: ROOMS.index(room) + 1] for name in ours), path


def test_dynamics_rows_and_gradients_do_not_know_numpyro():
    imports = {module_of(path): list(imports_of(path)) for path in FILES}
    seen, new = set(), {name for name in imports if room_of(name) in ("dynamics", "gradients", "rows", "schedules")}
    while new:
        seen |= new
        new = {name for module in new for name in imports[module] if name in imports} - seen
    assert not [module for module in seen for name in imports[module] if name.partition(".")[0] == "numpyro"]
