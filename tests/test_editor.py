"""An editor and a type checker see the public names: in a checkout, in an editable install, and in the wheel."""

import json
import re
import sys
from pathlib import Path

import jedi
import pytest

import qfunc
from qfunc import targets
from qfunc.specs import edit
from tests.installed import LINKED, ROOT, build_wheel, copy_sources, environment, own_variables, run

SOURCE = """\
import qfunc
from qfunc import targets
from qfunc.specs import edit

reveal_type(targets.onnxruntime)
reveal_type(qfunc.targets.tensorrt)
reveal_type(edit.name("a", "b"))
reveal_type(qfunc.lowering.QdqLowering())
reveal_type(qfunc.testing.oracle.float32(1))
target = edit.pipe(targets.onnxruntime, edit.weights(bits=4))
quantize = qfunc.quantize(target)
qfunc.quantize(3)  # wrong
edit.weights(bitz=4)  # wrong
qfunc.quantise(target)  # wrong
targets.onnxruntme  # wrong
"""
WRONG = [number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# wrong")]
REVEALED = ["Target", "Target", "Selector", "QdqLowering", "Fraction"]
INSTALLED = ("editable", "wheel")
FOLDER = {"editable": "checkout/qfunc", "wheel": "site-packages/qfunc", "checkout": "checkout/qfunc"}
"""Where qfunc is, for each way of installing; in a checkout it is not installed."""

NAMES = "arithmetics", "runtimes"
"""The modules of names in targets."""

UNREAD = ("torch", "numpy", "hypothesis", "onnx", "onnxruntime", "rich", "scipy", "tqdm")
"""Packages that the type checkers do not read: no claim depends on their types, and they take most of the time."""


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    """{how qfunc is installed: an interpreter}, and one that lacks it."""
    base = tmp_path_factory.mktemp("editor")
    editable = environment(base / "editable", "-e", copy_sources(base / "checkout"))
    wheel = environment(base / "wheel", build_wheel(base / "built"))
    return {"editable": editable, "wheel": wheel, "checkout": environment(base / "bare")}


@pytest.fixture(scope="module")
def folders(interpreters, tmp_path_factory):
    """{how qfunc is installed: where the user's file is}; in the checkout itself for the interpreter that lacks qfunc."""
    user = tmp_path_factory.mktemp("user")
    (user / "mine.py").write_text(SOURCE)
    (user / "mypy.ini").write_text(f"[mypy]\n[mypy-{','.join(f'{name}.*' for name in UNREAD)}]\nfollow_imports = skip\n")
    for name in UNREAD:
        (user / "typings" / name).mkdir(parents=True)
        (user / "typings" / name / "__init__.pyi").touch()
    return {"editable": user, "wheel": user, "checkout": interpreters["checkout"].parents[2] / "checkout"}


@pytest.mark.thorough
def test_mypy(interpreters, folders):
    """Both ways of installing in one test, since the second reads the cache of the first."""
    for way in INSTALLED:
        shown = run(interpreters[way], "-m", "mypy", "--strict", "mine.py", cwd=folders[way], status=1)

        assert [int(n) for n in re.findall(r"^mine.py:(\d+): error", shown, re.MULTILINE)] == WRONG, shown
        assert re.findall(r'Revealed type is "(?:\w+\.)*(\w+)"', shown) == REVEALED


@pytest.mark.thorough
@pytest.mark.parametrize("way", INSTALLED)
def test_pyright(way, interpreters, folders):
    options = ("--outputjson", "--pythonpath", interpreters[way])
    shown = run(sys.executable, "-m", "pyright", *options, "mine.py", cwd=folders[way], status=1)
    found = [(d["severity"], d["range"]["start"]["line"] + 1, d["message"]) for d in json.loads(shown)["generalDiagnostics"]]

    assert [line for severity, line, _ in found if severity == "error"] == WRONG
    assert re.findall(r' is "(\w+)"', " ".join(message for *_, message in found if "Type of" in message)) == REVEALED


@pytest.fixture(scope="module")
def script(interpreters, folders):
    """A function of the way of installing and a source: what jedi makes of it beside the user's file."""
    places = {way: jedi.create_environment(p, safe=False, env_vars=own_variables()) for way, p in interpreters.items()}
    projects = {way: jedi.Project(folder) for way, folder in folders.items()}
    return lambda way, source: jedi.Script(source, path=folders[way] / "x.py", environment=places[way], project=projects[way])


@pytest.mark.parametrize("way", FOLDER)
def test_jedi_completes_public_names(way, script):
    def completed(source):
        return {c.name for c in script(way, source).complete() if not c.name.startswith("_")}

    subpackages = {p.name for p in (ROOT / "qfunc").iterdir() if (p / "__init__.py").is_file()} | {*LINKED}
    chips = {*targets.__all__, *NAMES, *(p.name for p in (ROOT / "targets").iterdir() if (p / "__init__.py").is_file())}
    assert completed("from qfunc import targets\ntargets.") == chips
    assert completed("import qfunc\nqfunc.targets.") == chips
    assert completed("from qfunc.specs import edit\nedit.") == set(edit.__all__)
    assert completed("import qfunc\nqfunc.") == {*dir(qfunc), *subpackages}
    assert completed("from qfunc import tar") == {"targets"}


@pytest.mark.parametrize("way", FOLDER)
@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("targets.tensorrt", "targets/tensorrt/target.py", "tensorrt = "),
        ("qfunc.targets.tensorrt", "targets/tensorrt/target.py", "tensorrt = "),
        ("edit.weights", "specs/edit/_functions.py", "def weights("),
        ("qfunc.quantize", "transforms/quantize.py", "def quantize("),
    ],
)
def test_jedi_goes_to_definitions(way, name, file, text, script):
    source = f"import qfunc\nfrom qfunc import targets\nfrom qfunc.specs import edit\n{name}"
    found = script(way, source).goto(4, len(name), follow_imports=True)

    assert found
    for definition in found:
        assert definition.module_path.as_posix().endswith(f"{FOLDER[way]}/{file}")
        assert definition.get_line_code().startswith(text)


PUBLIC = (
    "", ".corrections", ".errors", ".estimators", ".functions", ".lowering", ".numerics", ".recipes", ".reconstruction",
    ".specs", ".specs.cpus", ".specs.edit", ".specs.formats", ".targets", ".targets.arithmetics",
    ".targets.runtimes", ".testing",
    ".testing.integer_oracle", ".testing.oracle", ".testing.strategies",
)  # fmt: skip
AT_RUNTIME = f"""\
import importlib, sys, types
import qfunc

print(qfunc.__file__)
assert not {{"qfunc.targets", "qfunc.testing", "onnx", "hypothesis"}} & sys.modules.keys()
before = dir(qfunc)
assert qfunc.targets.onnxruntime and qfunc.lowering.QdqLowering and qfunc.testing.check_target
names = ["qfunc" + name for name in {PUBLIC!r}]
for name in names:
    module = importlib.import_module(name)
    own = {{qfunc: ["lowering", "targets", "testing"], qfunc.targets: ["arithmetics", "runtimes"]}}.get(module, [])
    assert dir(module) == sorted([*module.__all__, *own]), name
    assert not [n for n in dir(module) if n.startswith("_") or not hasattr(module, n)], name
assert dir(qfunc) == before

found, new = set(), {{qfunc}}
while new:
    found |= new
    new = {{v for m in new for n in dir(m) if isinstance(v := getattr(m, n), types.ModuleType)}} - found
assert {{m.__name__ for m in found}} <= set(names), found
"""


@pytest.mark.thorough
@pytest.mark.parametrize("way", INSTALLED)
def test_dir_shows_public_names_and_they_load_on_demand(way, interpreters, folders):
    """Also every module that dir leads to, from qfunc along the names that it shows, is public."""
    shown = run(interpreters[way], "-c", AT_RUNTIME, cwd=folders[way])

    assert Path(shown.strip()).as_posix().endswith(f"{FOLDER[way]}/__init__.py")


def test_an_unknown_attribute_is_refused():
    with pytest.raises(AttributeError, match=r"^module 'qfunc' has no attribute 'quantise'$"):
        _ = qfunc.quantise
    with pytest.raises(ImportError, match="cannot import name 'quantise' from 'qfunc'"):
        from qfunc import quantise  # noqa: F401


def test_a_public_package_without_its_extra_is_no_attribute(monkeypatch):
    monkeypatch.delattr(qfunc, "testing", raising=False)
    monkeypatch.setitem(sys.modules, "qfunc.testing", None)

    assert not hasattr(qfunc, "testing")
    with pytest.raises(AttributeError, match=r"^module 'qfunc' cannot import 'testing': import of qfunc.testing halted"):
        _ = qfunc.testing
