"""Build the documentation site: the pages of this folder, the project's pages, examples, datasheets and the API.

    pip install -c constraints.txt -e ".[docs]"
    python docs/build.py [--output build/site]

The pages are Markdown files that link to each other by their paths in the repository. This script copies them and
translates the links. It writes one page for each example, target and public module, from the code itself. A warning of
Sphinx is an error: a link without a page, a name that does not exist, a page in no table of contents.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import posixpath
import re
import shutil
import sys
from pathlib import Path
from types import FunctionType, ModuleType

from sphinx.cmd.build import build_main
from tutorial import notebook

ROOT = Path(__file__).resolve().parent.parent
PROJECT = {
    "README.md": "index",
    "ARCHITECTURE.md": "architecture",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
}
MODULES = (
    "qfunc", "qfunc.specs", "qfunc.specs.edit", "qfunc.specs.formats", "qfunc.corrections", "qfunc.estimators",
    "qfunc.functions", "qfunc.lowering", "qfunc.targets.runtimes", "qfunc.targets.arithmetics", "qfunc.diagnosis",
    "qfunc.testing", "qfunc.recipes", "qfunc.errors",
)  # fmt: skip
CONTENTS = {
    "Tutorials": (
        "tutorials/first_model",
        "tutorials/accuracy",
        "tutorials/qat",
        "tutorials/transformer",
        "detector",
        "tutorials/conformance",
    ),
    "Guide": (
        "networks",
        "onnx_files",
        "diagnosis",
        "training",
        "corrections",
        "reconstruction",
        "mixed_precision",
        "sweeps",
        "data",
        "scale",
        "transformers",
        "reports",
        "from_mqbench",
    ),
    "Language models": (
        "language_models",
        "kv_cache",
        "speech",
        "llama_cpp",
        "vllm",
        "executorch",
        "streaming",
        "rounding",
        "smollm2",
    ),
    "Chips": ("targets", "target_table", "datasheets", "new_target"),
    "Exactness": ("exactness", "device", "conformance", "peers", "trained_networks", "fuzzing", "numerics"),
    "Reference": ("api/index", "examples/index"),
    "Project": ("architecture", "contributing", "style", "changelog"),
}
"""The pages of the site, by section."""

FOLDERS = (
    "frontend", "transforms", "decoding", "proof", "quantizers", "corrections", "reconstruction", "analysis", "diagnosis",
)  # fmt: skip
"""The folders of the functions of `qfunc`, in the order in which a user meets them."""

IMAGE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)*static/([^)\s]+)\)")
LINK = re.compile(r"(\[[^\]]*\])\(([^)\s]+)\)")
BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    found = {f"{name}.md": _translated(source, (ROOT / source).read_text()) for source, name in PROJECT.items()}
    docs = ROOT / "docs"
    for path in sorted((*docs.glob("*.md"), *docs.glob("tutorials/*.md"))):
        name = path.relative_to(docs).as_posix()
        found[name] = _translated(f"docs/{name}", path.read_text())
    for path in sorted(docs.glob("tutorials/*.md")):
        found[f"tutorials/{path.name}"] += f"\nThis page as a notebook: {{download}}`{path.stem}.ipynb`.\n"
        found[f"tutorials/{path.stem}.ipynb"] = notebook(path.stem)
    found["index.md"] = found["index.md"].replace('="docs/static/', '="_static/')
    found["index.md"] += "\n" + "\n".join(_contents(title, names) for title, names in CONTENTS.items())
    examples = sorted((ROOT / "examples").glob("*.py"))
    found |= {f"examples/{path.stem}.md": example_page(path) for path in examples}
    found["examples/index.md"] = "# Examples\n\n" + _contents("", [path.stem for path in examples], hidden=False)
    found |= {f"api/{module}.rst": module_page(module) for module in MODULES}
    found["api/index.md"] = "# API\n\n" + _contents("", MODULES, hidden=False)
    names = target_files()
    found |= {f"targets/{name}.md": target_page(name, file) for name, file in names.items()}
    intro = "One page for each target, printed from the value that qfunc computes with.\n\n"
    found["datasheets.md"] = "# Datasheets\n\n" + intro + _contents("", [f"targets/{name}" for name in names], hidden=False)
    return found


def page_of(path: str) -> str | None:
    """Return the page of a file of the repository, or None if it has no page.

    The source of a public module has the page of its API.

    >>> page_of("docs/training.md"), page_of("examples/qat.py"), page_of("setup.py")
    ('training.md', 'examples/qat.md', None)
    >>> page_of("specs/arithmetic/requantization.py"), page_of("qfunc/testing")
    ('api/qfunc.specs.rst', 'api/qfunc.testing.rst')
    """
    if path in PROJECT:
        return f"{PROJECT[path]}.md"
    folder, _, name = path.partition("/")
    if folder == "docs" and name.endswith(".md"):
        return name
    if folder == "examples" and name.endswith(".py"):
        return f"{path.removesuffix('.py')}.md"
    if folder == "targets" and name.endswith(".py"):
        return next((f"targets/{target}.md" for target, file in target_files().items() if file == ROOT / path), None)
    source = f"{path.removeprefix('qfunc/')}/".replace("/", ".")
    of_api = [m for m in MODULES if "." in m and f"qfunc.{source}".startswith(f"{m}.")]
    return f"api/{max(of_api, key=len)}.rst" if of_api else None


def _translated(source: str, text: str) -> str:
    # Return the text of a page whose links lead to pages; links to files without a page become plain text.
    here = page_of(source) or ""

    def link(found: re.Match[str]) -> str:
        label, (target, _, anchor) = found[1], found[2].partition("#")
        if not target or "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source} links to {target}, which is not in the repository")
        page = page_of(path)
        if page is None:
            return label[1:-1]
        return f"{label}({posixpath.relpath(page, posixpath.dirname(here) or '.')}{'#' + anchor if anchor else ''})"

    static = posixpath.relpath("_static", posixpath.dirname(here) or ".")
    text = IMAGE.sub(rf'<img src="{static}/\2" alt="\1">', text)
    # Blocks of code have the odd places.
    return "".join(part if k % 2 else LINK.sub(link, part) for k, part in enumerate(BLOCK.split(text)))


def _contents(title: str, names: tuple[str, ...] | list[str], hidden: bool = True) -> str:
    options = [":maxdepth: 1", *([":hidden:"] if hidden else []), *([f":caption: {title}"] if title else [])]
    return "\n".join(["```{toctree}", *options, "", *names, "```", ""])


def example_page(path: Path) -> str:
    """Return the page of an example: its docstring and its code."""
    text = path.read_text()
    title, _, rest = (ast.get_docstring(ast.parse(text)) or path.stem).partition("\n")
    body = text.split('"""', 2)[2].strip()
    paragraphs = "\n\n".join(map(_prose, filter(None, rest.strip().split("\n\n"))))
    return f"# {title.rstrip('.')}\n\n`examples/{path.name}`\n\n{paragraphs}\n\n```python\n{body}\n```\n"


def _prose(paragraph: str) -> str:
    # Return a paragraph of a docstring as Markdown: a block of text if a line is indented.
    if any(line.startswith(" ") for line in paragraph.split("\n")):
        return f"```text\n{paragraph}\n```"
    return "".join(
        part if k % 2 else re.sub(r"([*_<\[\]])", r"\\\1", part) for k, part in enumerate(re.split(r"(`[^`]*`)", paragraph))
    )


def module_page(module: str) -> str:
    """Return the page of a public module: everything in its `__all__`; constants by their values.

    The names are sorted by the folder that defines them, in the order of `FOLDERS`, functions before classes.
    """
    found = importlib.import_module(module)
    lines = [module, "=" * len(module), "", (found.__doc__ or "").partition("\n")[0], ""]

    def place(name: str) -> tuple[int, bool]:
        value = getattr(found, name)
        folder = getattr(value, "__module__", module).partition(".")[2].partition(".")[0]
        return (FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS), not isinstance(value, FunctionType))

    for name in sorted((n for n in found.__all__ if not n.startswith("_")), key=place):
        value, title = getattr(found, name), [name, "-" * len(name), ""]
        if isinstance(value, ModuleType):
            page = f"/api/{value.__name__}" if value.__name__ in MODULES else "/datasheets"
            lines += [*title, f":doc:`{value.__name__} <{page}>`", ""]
        elif isinstance(value, type):
            lines += [*title, f".. autoclass:: {module}.{name}", "   :members:", ""]
        elif isinstance(value, FunctionType):
            lines += [*title, f".. autofunction:: {module}.{name}", ""]
        else:
            lines += [*title, ".. code-block:: python", "", *(f"   {line}" for line in f"{name} = {value!r}".split("\n")), ""]
    return "\n".join(lines)


def target_files() -> dict[str, Path]:
    """Return the file of each target by the target's name, as `targets/__init__.py` imports them."""
    tree = ast.parse((ROOT / "targets" / "__init__.py").read_text())
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module != "qfunc.targets"]
    files = {a.name: str(n.module).removeprefix("qfunc.").replace(".", "/") for n in imports for a in n.names}
    return {name: ROOT / f"{path}.py" for name, path in files.items()}


def target_page(name: str, path: Path) -> str:
    """Return the page of a target: the docstring of its file, the printed value, and the file."""
    file = path.read_text()
    value = getattr(importlib.import_module("qfunc.targets"), name)
    title, _, rest = (ast.get_docstring(ast.parse(file)) or name).partition("\n")
    blocks = [f"# {name}", _prose(title), *map(_prose, filter(None, rest.strip().split("\n\n")))]
    blocks += [f"```pycon\n>>> print(qfunc.targets.{name})\n```\n\n```text\n{value}\n```"]
    blocks += ["## The file", f"```python\n{file.split(chr(34) * 3, 2)[2].strip()}\n```"]
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    """Write the pages, and run Sphinx on them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site", help="the folder of the site")
    output = parser.parse_args().output
    source = output.with_name(f"{output.name}-pages")
    for folder in (source, output):
        shutil.rmtree(folder, ignore_errors=True)
    for path, text in pages().items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    failed = build_main(
        ["-b", "html", "-W", "--keep-going", "-q", "-j", "2", "-c", str(ROOT / "docs"), str(source), str(output)]
    )
    print(f"{output / 'index.html'}: {sum(1 for _ in output.rglob('*.html'))} pages")
    return failed


if __name__ == "__main__":
    sys.exit(main())
