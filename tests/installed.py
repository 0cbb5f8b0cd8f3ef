"""Copies of the sources, their wheel, and fresh environments in which qfunc is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINKED = ("specs", "targets")
"""The folders of the checkout that are packages of qfunc by links, which some checkouts lack."""


def copy_sources(tree: Path, *, links: bool = True) -> Path:
    """Copy what a build reads, since a build leaves folders behind; with the links in qfunc, or as a checkout without them."""
    shutil.copytree(ROOT / "qfunc", tree / "qfunc", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "qfunc" / name).unlink(missing_ok=True)
        if links:
            (tree / "qfunc" / name).symlink_to(Path("..", name), target_is_directory=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def build_wheel(place: Path, *, links: bool = True) -> Path:
    """Build the wheel of a copy of the sources."""
    tree = copy_sources(place / "tree", links=links)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, tree, cwd=place)
    return next(place.glob("*.whl"))


def environment(place: Path, *install: str | Path) -> Path:
    """Return the interpreter of a new environment: pip installs these in it, and other packages are this environment's."""
    venv.create(place, symlinks=os.name != "nt")
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    (own / "zz_shared.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    options = ("-q", "--no-deps", "--no-build-isolation", "--force-reinstall", "--no-warn-script-location")
    if install:
        run(python, "-m", "pip", "install", *options, *install, cwd=place)
    return python


def own_variables() -> dict[str, str]:
    """Return the variables of this process but for those that add paths to Python's."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MYPYPATH")}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """Return what a command prints; it must end with this status, and sees none of this process's paths."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=own_variables(), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout
