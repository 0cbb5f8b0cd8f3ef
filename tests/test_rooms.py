"""Which package may import which, that no imports form a circle, which names are taken, what `import qfunc` loads."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import qfunc
from tests.each import failures

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.MULTILINE)
ROOMS = {room: int(level) for level, room in ROW.findall((ROOT / "ARCHITECTURE.md").read_text())}
"""The level of each package or module in qfunc.  A room imports from rooms of lower levels, and from itself."""
CHIPS = ROOT / "targets"
OF_CHIPS = re.compile(r"^\| `(\w+)` \| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)
EDGES = {chip: set(re.findall(r"\w+", found)) for chip, found in OF_CHIPS.findall((ROOT / "ARCHITECTURE.md").read_text())}
"""The chips that a chip imports."""
ENGINE_WITH_CHIPS = {
    "qfunc/__init__.py": "the facade, for type checkers", "qfunc/command_line/inspect.py": "targets by name",
    "qfunc/command_line/target_argument.py": "targets by name", "qfunc/testing/fuzz/campaign.py": "targets by name",
    "qfunc/testing/laws/target.py": "the nearest target by name",
    "qfunc/proof/saved_check.py": "folders of targets without a runner",
}  # fmt: skip
"""The files of the engine that import chips, each with the reason."""
SOURCES = sorted(p for folder in ("qfunc", "specs", "targets") for p in (ROOT / folder).rglob("*.py"))
EVERYTHING = SOURCES + sorted(
    p for folder in ("tests", "examples", "benchmarks", "docs") for p in (ROOT / folder).rglob("*.py")
)

FACADE = ROOT / "specs" / "__init__.py"
"""It also names the arithmetics, whose room is above: whoever imports a name from it imports the module that defines it."""


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree, made once for all the tests of a file."""
    return ast.parse(source)


def imports(source: str, package: str = "") -> set[str]:
    """The dotted names that a module imports, wherever the statement stands; relative ones made absolute."""
    found = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            parent = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (parent, node.module)))
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def package_of(path: Path) -> str:
    """The package that a source file is installed in: specs/edit.py -> qfunc.specs."""
    parts = path.relative_to(ROOT).parent.parts
    return ".".join(parts if parts[0] == "qfunc" else ("qfunc", *parts))


def room_of(dotted: str) -> str | None:
    """Return the room of an imported name: qfunc.specs.edit -> specs; a public name of qfunc itself -> qfunc."""
    parts = dotted.split(".")
    if parts[0] != "qfunc":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "qfunc"


def own_room(path: Path) -> str:
    """Return the room of a file; qfunc/__init__.py is the room "qfunc"."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] != "qfunc":
        return relative.parts[0]
    return "qfunc" if relative.name == "__init__.py" and len(relative.parts) == 2 else relative.parts[1].removesuffix(".py")


def upward_imports(path: Path, source: str) -> list[str]:
    """Return the imports of a file from other rooms of its own level or above."""
    own = own_room(path)
    rooms = {dotted: room for dotted in imports(source, package_of(path)) if (room := room_of(dotted)) not in (None, own)}
    above = {dotted for dotted, room in rooms.items() if ROOMS[room] >= ROOMS[own]}
    return sorted(d for d in above if path != FACADE or not d.startswith("qfunc.arithmetic."))


def module_of(path: Path) -> str:
    """Return the dotted name of a source file: specs/edit.py -> qfunc.specs.edit."""
    return package_of(path) if path.name == "__init__.py" else f"{package_of(path)}.{path.stem}"


def imported_modules(dotted: str, modules: set[str]) -> set[str]:
    """Return the module that an imported name stands for: the name itself, or the module that defines it."""
    found = defined().get(dotted, dotted)
    return {found} & modules or {found.rpartition(".")[0]} & modules


@cache
def defined() -> dict[str, str]:
    """Return by each name of the facade the name in the module that defines it."""
    return {f"qfunc.specs.{d.rpartition('.')[2]}": d for d in imports(FACADE.read_text(), "qfunc.specs")}


def type_checking_only(node: ast.AST) -> bool:
    """Return True for `if TYPE_CHECKING:`, whose imports never run."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return by module the modules that it imports, at its top or inside functions."""

    class Runtime(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST:
            return ast.Pass() if type_checking_only(node) else self.generic_visit(node)

    graph = {}
    for name, source in sources.items():
        text = ast.unparse(Runtime().visit(ast.parse(source))) if "TYPE_CHECKING" in source else source
        found = {m for dotted in imports(text, name.rpartition(".")[0]) for m in imported_modules(dotted, set(sources))}
        graph[name] = found - {name}
    return graph


def circle(sources: dict[str, str]) -> list[str]:
    """Return modules that import each other in a circle, in its order, or an empty list."""
    try:
        TopologicalSorter(import_graph(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_file_imports_from_its_own_room_or_from_lower_levels():
    assert failures(imports_from_its_own_room_or_from_lower_levels, SOURCES) == {}


def imports_from_its_own_room_or_from_lower_levels(path):
    assert own_room(path) in ROOMS
    assert upward_imports(path, path.read_text()) == []


FOLDERS = sorted({p.parent for p in SOURCES})


def test_a_folder_can_be_overlooked():
    assert failures(can_be_overlooked, FOLDERS) == {}


def can_be_overlooked(folder):
    """It has three files or more, is at most three levels below qfunc, and no file repeats its name."""
    files = sorted(p.stem for p in folder.glob("*.py"))
    path = folder.relative_to(ROOT)
    assert len(files) >= 3
    assert len(path.parts) <= 3
    assert [f for f in files if path.name in f.split("_")] == []


def test_no_two_test_files_share_a_name():
    """pytest imports test files by base name, since the folders of tests are no packages."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_table_of_rooms_is_complete():
    assert {own_room(p) for p in SOURCES} == set(ROOMS)


def test_no_imports_form_a_circle():
    assert circle({module_of(p): p.read_text() for p in SOURCES}) == []


@pytest.mark.parametrize(
    "sources",
    [
        {"a": "import b", "b": "def f():\n    import a"},
        {"p.a": "from p import b", "p.b": "from p.c import x", "p.c": "class K:\n    def f(self):\n        from p.a import y"},
    ],
)
def test_a_circle_is_found_inside_functions_too(sources):
    assert set(circle(sources)) == set(sources)


@pytest.mark.parametrize(
    "sources",
    [
        {"a": "import b", "b": "if TYPE_CHECKING:\n    import a"},
        {"p": "from p.a import x", "p.a": "import os", "b": "import p"},
    ],
)
def test_a_chain_and_an_import_for_type_checkers_are_no_circle(sources):
    assert circle(sources) == []


def test_specs_import_errors_files_specs_and_the_traits_of_ops_only():
    for path in sorted((ROOT / "specs").rglob("*.py")):
        named = {d for d in imports(path.read_text(), package_of(path)) if not d.startswith("qfunc.ops.traits.")}
        rooms = {room for d in named if (room := room_of(d))}
        assert rooms - ({"arithmetic"} if path == FACADE else set()) <= {"errors", "files", "specs"}, path


def test_qfunc_uses_the_json_that_knows_its_classes():
    """`specs.to_json` is bound at the end of `import qfunc`: an earlier `from qfunc.specs import to_json` is another."""
    for path in SOURCES:
        if path.name == "__main__.py" or own_room(path) == "testing":  # imported after qfunc
            continue
        wrong = imports(path.read_text(), package_of(path)) & {"qfunc.specs.to_json", "qfunc.specs.from_json"}
        assert not wrong, path


DATA = [*sorted(CHIPS.glob("*.py")), *sorted(CHIPS.rglob("*/*target.py"))]
"""The files of targets: data alone."""


@pytest.mark.parametrize("paths", [sorted((ROOT / "specs").rglob("*.py")), DATA], ids=["specs", "targets"])
def test_specs_and_targets_need_neither_torch_nor_onnx(paths):
    for path in paths:
        roots = {d.split(".")[0] for d in imports(path.read_text(), package_of(path))} - {"qfunc", "attr"}
        assert roots - sys.stdlib_module_names <= {"attrs"}, path


def chip_of(dotted: str) -> str:
    """Return the chip of an imported name, or "": qfunc.targets.ncnn.runner -> ncnn."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == ["qfunc", "targets"] and len(parts) > 3 else ""


def test_the_engine_imports_no_chip():
    """Also inside of functions and for type checkers, but for the files that take targets by name."""
    engine = [p for p in SOURCES if p.relative_to(ROOT).parts[0] == "qfunc"]
    names = {str(p.relative_to(ROOT)): imports(p.read_text(), package_of(p)) for p in engine}
    assert {name for name, found in names.items() if any(d.startswith("qfunc.targets") for d in found)} == set(
        ENGINE_WITH_CHIPS
    )


def test_a_chip_imports_the_chips_of_its_row_only():
    found = {}
    for path in sorted(CHIPS.rglob("*.py")):
        own = path.relative_to(CHIPS).parts[0].removesuffix(".py")
        if own not in ("__init__", "arithmetics", "runtimes"):
            others = {chip for d in imports(path.read_text(), package_of(path)) if (chip := chip_of(d))} - {own}
            found[own] = found.get(own, set()) | others
    assert {chip: others for chip, others in found.items() if others} == EDGES


def test_the_traits_that_specs_import_need_the_standard_library_only():
    path = ROOT / "qfunc" / "ops" / "traits.py"
    assert {d.split(".")[0] for d in imports(path.read_text(), package_of(path))} <= sys.stdlib_module_names


def test_qfunc_imports_targets_for_type_checkers_alone():
    tree = ast.parse((ROOT / "qfunc/__init__.py").read_text())
    assert "targets" in {room_of(d) for d in imports(ast.unparse(tree))}
    tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "_typing.TYPE_CHECKING")]
    assert "targets" not in {room_of(d) for d in imports(ast.unparse(tree))}


@pytest.mark.thorough
def test_no_bare_specs_or_targets_and_no_torch_ao():
    assert failures(imports_no_bare_specs_or_targets_and_no_torch_ao, EVERYTHING) == {}


def imports_no_bare_specs_or_targets_and_no_torch_ao(path):
    """A bare `import specs` would make a second copy of every class."""
    wrong = [d for d in imports(path.read_text()) if d.split(".")[0] in ("specs", "targets") or d.startswith("torch.ao")]
    assert wrong == []
    attributes = (n for n in ast.walk(parsed(path.read_text())) if isinstance(n, ast.Attribute) and n.attr == "ao")
    assert [n for n in attributes if ast.unparse(n) == "torch.ao"] == []


def test_no_module_has_the_name_of_a_public_callable():
    modules = {p.stem if p.name != "__init__.py" else p.parent.name for p in (ROOT / "qfunc").glob("*.py")}
    modules |= {p.name for p in (ROOT / "qfunc").iterdir() if p.is_dir()} | {"specs", "targets"}
    public = {name for name in qfunc.__all__ if callable(getattr(qfunc, name))}
    assert not public & modules


@pytest.mark.thorough
def test_public_names_stay_what_they_are():
    """Importing every module replaces no public function by a module."""
    folders = ("specs", "estimators", "functions", "numerics", "graph", "transforms")
    names = [f"{package_of(p)}.{p.stem}" for p in SOURCES if own_room(p) in folders and p.name != "__init__.py"]
    script = (
        "import importlib, qfunc\n"
        "before = {n: getattr(qfunc, n) for n in qfunc.__all__}\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "assert all(getattr(qfunc, n) is v for n, v in before.items())\n"
    )
    run(script)


def test_import_loads_neither_onnx_nor_dynamo_nor_targets_nor_the_testing_kit():
    run(
        "import sys, qfunc, qfunc.specs.edit\n"
        "loaded = {'onnx', 'onnxruntime', 'torch._dynamo', 'qfunc.targets', 'specs', 'targets'} & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
        "from qfunc import targets\n"
        "loaded = [m for m in sys.modules if m.startswith(('qfunc.testing', 'hypothesis'))]\n"
        "assert not loaded, loaded\n"
    )


def run(script: str) -> None:
    """Runs a script in a new process, in the checkout."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("specs/new.py", "from qfunc.numerics.affine import quantize"),
        ("specs/new.py", "from ..numerics import affine"),
        ("specs/new.py", "def f():\n    import qfunc.frontend.capture"),
        ("specs/new.py", "from qfunc import capture"),
        ("qfunc/numerics/new.py", "from qfunc.functions import Fixed"),
        ("qfunc/graph/new.py", "from qfunc import transforms"),
        ("qfunc/lowering/new.py", "from qfunc import targets"),
        ("targets/new.py", "import qfunc.testing"),
        ("qfunc/passes/new.py", "from qfunc.placement.place import place"),
        ("qfunc/functions/new.py", "def f():\n    from qfunc import estimators"),
    ],
)
def test_an_upward_import_is_found(place, source):
    assert upward_imports(ROOT / place, source)


@pytest.mark.parametrize(
    ("place", "source"),
    [("qfunc/numerics/new.py", "from qfunc.specs import Int"), ("qfunc/passes/new.py", "from qfunc.passes import own"),
     ("qfunc/testing/new.py", "from qfunc import targets"), ("specs/new.py", "from qfunc.errors import SpecError")],
)  # fmt: skip
def test_an_import_from_below_is_allowed(place, source):
    assert upward_imports(ROOT / place, source) == []
