"""
What is checked of dist/ after ``python -m build``: ``python .ci/check_dist.py [--dated] [-c CONSTRAINTS]``.

The versions of the archives, CITATION.cff and CHANGELOG.md agree, with ``--dated`` the changelog's section has a date,
and both archives have the licence. Each is installed in an empty environment, and the example of README.md runs there,
in another folder, where the sources cannot stand in for it.
"""

from pathlib import Path
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile

ROOT = Path(__file__).resolve().parents[1]
NAME = "numpyro_sgmcmc"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def found(pattern: str, text: str, where: str) -> tuple[str, ...]:
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    return match.groups() if match else sys.exit(f"{where} has nothing like {pattern!r}")


def check_versions(needs_date: bool) -> str:
    (version,) = found(r'^__version__ = "(.+?)"$', text_of(f"{NAME}/__init__.py"), "the package")
    (cited,) = found(r"^version: (\S+)$", text_of("CITATION.cff"), "CITATION.cff")
    logged, dated = found(r"^## \[(\S+?)\] - (\S+)$", text_of("CHANGELOG.md"), "CHANGELOG.md")
    if not version == cited == logged:
        sys.exit(f"the package has version {version}, CITATION.cff {cited}, CHANGELOG.md {logged}")
    if needs_date and not re.fullmatch(r"\d{4}-\d\d-\d\d", dated):
        sys.exit(f"CHANGELOG.md: the section of {logged} has no date, but {dated!r}")
    return version


def check_licences(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as files, tarfile.open(sdist) as members:
        (inside,) = (name for name in files.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        of_sdist = members.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/LICENSE")
        assert of_sdist and files.read(inside) == of_sdist.read() == (ROOT / "LICENSE").read_bytes()
        assert f"{NAME}/py.typed" in files.namelist()


def run_example(archive: Path, options: list[str]) -> None:
    (example,) = found(r"^```python\n(.*?)^```", text_of("README.md"), "README.md")
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        venv.create(python.parents[1])
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *options]
        subprocess.run([*pip, archive], check=True)
        Path(folder, "example.py").write_text(f"{example}\nimport {NAME}\nprint({NAME}.__file__)\n")
        subprocess.run([python, "-I", "example.py"], cwd=folder, check=True)


options = [option for option in sys.argv[1:] if option != "--dated"]
version = check_versions(needs_date="--dated" in sys.argv)
wheel, sdist = (ROOT / "dist" / f"{NAME}-{version}{end}" for end in ("-py3-none-any.whl", ".tar.gz"))
check_licences(wheel, sdist)
for archive in (wheel, sdist):
    run_example(archive, options)
    print(f"{archive.name}: the example of README.md runs", flush=True)
