"""The packages of the wheel: qfunc and every folder in it; pyproject.toml holds the rest.

`qfunc/specs` and `qfunc/targets` are links to the folders beside `qfunc`.  Where a checkout has no links (Windows,
some copies), those folders are mapped into the package by name.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
MISSING = [name for name in ("specs", "targets") if not (ROOT / "qfunc" / name).is_dir()]

packages = find_packages(str(ROOT), include=["qfunc", "qfunc.*"])
for name in MISSING:
    packages += [f"qfunc.{name}", *(f"qfunc.{name}.{inner}" for inner in find_packages(str(ROOT / name)))]

setup(packages=packages, package_dir={"": "."} | {f"qfunc.{name}": name for name in MISSING})
