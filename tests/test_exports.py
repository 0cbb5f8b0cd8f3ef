"""Public names: they exist, are listed, are documented, and the documentation shows them at work."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import qfunc
from qfunc import reconstruction, targets
from tests.each import failures

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = [path.relative_to(ROOT) for folder in ("qfunc", "specs", "targets") for path in (ROOT / folder).rglob("*.py")]
MODULES = sorted(
    ".".join(("qfunc", *f.with_suffix("").parts)[f.parts[0] == "qfunc" :]).removesuffix(".__init__") for f in FILES
)
"""By files: in a checkout `pkgutil.walk_packages` would walk qfunc.qfunc.qfunc without end."""
PUBLIC = [
    *(f"qfunc.{n}" for n in qfunc.__all__),
    *(f"qfunc.specs.{n}" for n in qfunc.specs.__all__),
    *(f"qfunc.specs.formats.{n}" for n in qfunc.specs.formats.__all__),
    *(f"qfunc.corrections.{n}" for n in qfunc.corrections.__all__),
    *(f"qfunc.specs.edit.{n}" for n in qfunc.specs.edit.__all__),
    *(f"qfunc.estimators.{n}" for n in qfunc.estimators.__all__),
    *(f"qfunc.functions.{n}" for n in qfunc.functions.__all__),
    *(f"qfunc.recipes.{n}" for n in qfunc.recipes.__all__),
    *(f"qfunc.reconstruction.{n}" for n in reconstruction.__all__),
    *(f"qfunc.targets.{n}" for n in targets.__all__),
    *(f"qfunc.targets.arithmetics.{n}" for n in targets.arithmetics.__all__),
]


def found(dotted: str) -> object:
    """The object of a dotted name, by imports and attributes."""
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            value = getattr(value, name)
        return value
    raise ModuleNotFoundError(dotted)


def test_all_is_what_exists():
    """No public name of qfunc is missing from __all__; besides it there are only the packages that imports bring."""
    packages = {name.split(".")[1] for name in MODULES if "." in name} - {"errors"}
    names = {n for n, v in vars(qfunc).items() if not n.startswith("_") and n not in packages}

    assert names | {"corrections", "estimators", "functions", "recipes", "specs"} == set(qfunc.__all__)
    assert len(qfunc.__all__) == len(set(qfunc.__all__))


def test_all_names_exist():
    assert failures(all_names_exist, MODULES) == {}


def all_names_exist(name):
    module = importlib.import_module(name)

    assert [n for n in getattr(module, "__all__", ()) if not hasattr(module, n)] == []


@pytest.mark.thorough
def test_modules_and_what_they_define_have_docstrings():
    assert failures(module_and_what_it_defines_have_docstrings, MODULES) == {}


def module_and_what_it_defines_have_docstrings(name):
    module = importlib.import_module(name)
    assert module.__doc__ or not Path(module.__file__).read_text().strip()
    bare = [
        n
        for n, v in vars(module).items()
        if not n.startswith("_") and (inspect.isfunction(v) or inspect.isclass(v)) and v.__module__ == name and not v.__doc__
    ]
    assert bare == []


def test_public_functions_and_classes_show_an_example():
    assert failures(shows_an_example, PUBLIC) == {}


def shows_an_example(name):
    value = found(name)
    if not (inspect.isfunction(value) or inspect.isclass(value)) or name.rsplit(".")[-1] in WITHOUT_EXAMPLE:
        return
    shown = bool(doctest.DocTestParser().get_examples(inspect.getdoc(value) or ""))
    assert shown


WITHOUT_EXAMPLE = {
    "Estimator", "Function", "Lowering", "Runner",  # protocols
    "load", "where", "inputs", "outputs", "deploy", "narrowed", "SchemeChange",  # need files or a module-level function
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_documented_names_exist(page):
    """Every `qfunc.x`, `specs.x`, `targets.x` and `edit.x` that a page mentions can be imported."""
    text = page.read_text()
    names = set(re.findall(r"(?<![\w/.`])`?((?:qfunc|specs|targets|edit)(?:\.[A-Za-z_]\w*)+)", text))
    for name in sorted(n for n in names if n.rsplit(".")[-1] not in ("py", "md", "json", "git")):
        found({"qfunc": name, "edit": f"qfunc.specs.{name}"}.get(name.split(".")[0], f"qfunc.{name}"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_documented_files_exist(page):
    folders = "qfunc|specs|targets|tests|examples|benchmarks|docs|.ci"
    files = set(re.findall(rf"(?<![\w/.])((?:{folders})/[\w/-]+(?:\.\w+)?)", page.read_text())) - {"targets/NAME.py"}

    assert [f for f in sorted(files) if not (ROOT / f).exists()] == []
