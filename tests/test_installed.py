"""The wheel holds every module, py.typed and the licence, and works where no checkout is."""

import os
import subprocess
import sys
import zipfile

import pytest

from tests.installed import LINKED, ROOT, build_wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the sources as they are."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_name(wheel):
    assert wheel.name.startswith("qfunc_torch-")


def test_every_module_is_in_the_wheel_and_nothing_else(wheel):
    inside = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    here = {
        p.relative_to(ROOT).as_posix() for kind in ("*.py", "*.mjs", "*.html", "py.typed") for p in (ROOT / "qfunc").rglob(kind)
    }
    here |= {f"qfunc/{p.relative_to(ROOT).as_posix()}" for f in ("specs", "targets") for p in (ROOT / f).rglob("*.py")}

    assert inside == here


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_to_the_folders_beside(name):
    """Not a copy, which would get out of date; a checkout without links has none, or a file."""
    link = ROOT / "qfunc" / name
    assert not link.is_dir() or (link.is_symlink() and link.resolve() == (ROOT / name).resolve())


@pytest.mark.thorough
def test_a_checkout_without_links_makes_the_same_wheel(wheel, tmp_path):
    whole, other = (zipfile.ZipFile(w) for w in (wheel, build_wheel(tmp_path, links=False)))
    assert sorted(other.namelist()) == sorted(whole.namelist())
    modules = [n for n in whole.namelist() if n.endswith(".py")]
    assert all(other.read(n) == whole.read(n) for n in modules)


def test_the_licence_is_in_the_wheel(wheel):
    names = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("licenses/LICENSE")]

    assert zipfile.ZipFile(wheel).read(names[0]).decode() == (ROOT / "LICENSE").read_text()
    assert "Apache License" in (ROOT / "LICENSE").read_text()


@pytest.mark.thorough
def test_the_wheel_goes_the_whole_road_elsewhere(wheel, tmp_path):
    """Unpacked, first on the path, in a folder that has a specs.py and a targets.py of its own."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site-packages")
    (tmp_path / "work").mkdir()
    for name in ("specs.py", "targets.py"):
        (tmp_path / "work" / name).write_text("raise RuntimeError('a file of the user was imported')\n")
    modules = subprocess.run([sys.executable, str(ROOT / ".ci/modules.py")], capture_output=True, text=True, check=True)
    script = f"import runpy, sys; sys.argv[:1] = []; runpy.run_path({str(ROOT / '.ci/wheel.py')!r}, run_name='__main__')"
    command = [sys.executable, "-W", "error", "-c", script, "wheel.py", *modules.stdout.split()]
    env = os.environ | {"PYTHONPATH": f"{tmp_path / 'site-packages'}{os.pathsep}{tmp_path / 'work'}"}
    done = subprocess.run(command, cwd=tmp_path / "work", env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(modules.stdout.split())} modules imported" in done.stdout
