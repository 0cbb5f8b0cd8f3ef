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
from tests.installed import ROOT, build_wheel, copy_sources, environment, run

SOURCE = """\
import qfunc
from qfunc import targets
from qfunc.specs import edit

reveal_type(targets.onnxruntime)
reveal_type(qfunc.targets.tensorrt)
reveal_type(edit.name("a", "b"))
reveal_type(qfunc.lowering.Qdq())
reveal_type(qfunc.testing.oracle.float32(1))
target = edit.pipe(targets.onnxruntime, edit.weights(bits=4))
quantize = qfunc.quantize(target)
qfunc.quantize(3)  # wrong
qfunc.quantise(target)  # wrong
targets.onnxruntme  # wrong
"""
WRONG = [number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# wrong")]
REVEALED = ["Target", "Target", "Selector", "Qdq", "Fraction"]
INSTALLED = ("editable", "wheel")


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
    (user / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,hypothesis.*]\nfollow_imports = skip\n")  # a third of the time
    return {"editable": user, "wheel": user, "checkout": interpreters["checkout"].parents[2] / "checkout"}


def test_mypy(interpreters, folders):
    """Both ways of installing in one test, since the second reads the cache of the first."""
    for way in INSTALLED:
        shown = run(interpreters[way], "-m", "mypy", "--strict", "mine.py", cwd=folders[way], status=1)

        assert [int(n) for n in re.findall(r"^mine.py:(\d+): error", shown, re.MULTILINE)] == WRONG, shown
        assert re.findall(r'Revealed type is "(?:\w+\.)*(\w+)"', shown) == REVEALED


@pytest.mark.parametrize("way", INSTALLED)
def test_pyright(way, interpreters, folders):
    options = ("--outputjson", "--pythonpath", interpreters[way])
    shown = run(sys.executable, "-m", "pyright", *options, "mine.py", cwd=folders[way], status=1)
    found = [(d["severity"], d["range"]["start"]["line"] + 1, d["message"]) for d in json.loads(shown)["generalDiagnostics"]]

    assert [line for severity, line, _ in found if severity == "error"] == WRONG
    assert re.findall(r' is "(\w+)"', " ".join(message for *_, message in found if "Type of" in message)) == REVEALED


@pytest.mark.parametrize("way", [*INSTALLED, "checkout"])
def test_jedi_completes_public_names(way, interpreters, folders):
    def written(source):
        place = jedi.create_environment(interpreters[way], safe=False)
        return jedi.Script(source, path=folders[way] / "x.py", environment=place, project=jedi.Project(folders[way]))

    def completed(source):
        return {c.name for c in written(source).complete() if not c.name.startswith("_")}

    subpackages = {p.name for p in (ROOT / "qfunc").iterdir() if (p / "__init__.py").is_file()}
    assert completed("from qfunc import targets\ntargets.") == set(targets.__all__)
    assert completed("import qfunc\nqfunc.targets.") == set(targets.__all__)
    assert completed("from qfunc.specs import edit\nedit.") == set(edit.__all__)
    assert completed("import qfunc\nqfunc.") == {*dir(qfunc), *subpackages}
    assert completed("from qfunc import tar") == {"targets"}


@pytest.mark.parametrize("way", [*INSTALLED, "checkout"])
def test_jedi_goes_to_definitions(way, interpreters, folders):
    place = jedi.create_environment(interpreters[way], safe=False)
    for line, file, text in (
        ("targets.tensorrt", "targets/tensorrt.py", "tensorrt = "),
        ("qfunc.targets.tensorrt", "targets/tensorrt.py", "tensorrt = "),
        ("edit.weights", "specs/_edits.py", "def weights("),
        ("qfunc.quantize", "qfunc/transforms/quantize.py", "def quantize("),
    ):
        source = f"import qfunc\nfrom qfunc import targets\nfrom qfunc.specs import edit\n{line}"
        script = jedi.Script(source, path=folders[way] / "x.py", environment=place, project=jedi.Project(folders[way]))
        found = script.goto(4, len(line), follow_imports=True)

        assert found
        for definition in found:
            assert definition.module_path.as_posix().endswith(file)
            assert definition.get_line_code().startswith(text)


PUBLIC = (
    "", ".errors", ".estimators", ".functions", ".lowering", ".numerics", ".recipes", ".reconstruction", ".specs",
    ".specs.edit", ".targets", ".testing", ".testing.integer_oracle", ".testing.oracle", ".testing.strategies",
)  # fmt: skip
AT_RUNTIME = f"""\
import importlib, sys, types
import qfunc

print(qfunc.__file__)
assert not {{"qfunc.targets", "qfunc.testing", "onnx", "hypothesis"}} & sys.modules.keys()
before = dir(qfunc)
assert qfunc.targets.onnxruntime and qfunc.lowering.Qdq and qfunc.testing.check_target
names = ["qfunc" + name for name in {PUBLIC!r}]
for name in names:
    module = importlib.import_module(name)
    own = ["lowering", "targets", "testing"] if module is qfunc else []
    assert dir(module) == sorted([*module.__all__, *own]), name
    assert not [n for n in dir(module) if n.startswith("_") or not hasattr(module, n)], name
assert dir(qfunc) == before

found, new = set(), {{qfunc}}
while new:
    found |= new
    new = {{v for m in new for n in dir(m) if isinstance(v := getattr(m, n), types.ModuleType)}} - found
assert {{m.__name__ for m in found}} <= set(names), found
"""


@pytest.mark.parametrize("way", INSTALLED)
def test_dir_shows_public_names_and_they_load_on_demand(way, interpreters, folders):
    """Also every module that dir leads to, from qfunc along the names that it shows, is public."""
    shown = run(interpreters[way], "-c", AT_RUNTIME, cwd=folders[way])
    folder = {"editable": "checkout/qfunc", "wheel": "site-packages/qfunc"}[way]

    assert Path(shown.strip()).as_posix().endswith(f"{folder}/__init__.py")


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
