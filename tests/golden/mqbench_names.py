"""Read the public names of MQBench from a clone of it into mqbench_names.json.

    git clone https://github.com/ModelTC/MQBench && python tests/golden/mqbench_names.py MQBench

No name is written here: classes, members, arguments and keys are found in the syntax trees of the revisions below.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REVISIONS = {
    "mqb-torch1.10": "09ff5cb7738d2fff2a46f9cb855f29dcd5164d1b",
    "main": "00f477d58ef67c1c1bbe71d14312731fd3a4960d",
    "v0.0.3-archived": "3f8321ec9ab9fd05d99c21700a901b1ff6a90a1e",
}


def trees(clone: str, revision: str, folder: str) -> Iterator[ast.AST]:
    git = ["git", "-C", clone]
    listed = subprocess.check_output([*git, "ls-tree", "-r", "--name-only", revision, folder], text=True)
    for path in listed.splitlines():
        if path.endswith(".py"):
            yield ast.parse(subprocess.check_output([*git, "show", f"{revision}:{path}"], text=True))


def classes(tree: ast.AST) -> Iterator[str]:
    return (n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and not n.name.startswith("_"))


def members(tree: ast.AST, name: str) -> Iterator[str]:
    bodies = (n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    return (t.id for body in bodies for s in body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def arguments(tree: ast.AST, name: str) -> Iterator[str]:
    return (a.arg for f in functions(tree) if f.name == name for a in f.args.args)


def keys(tree: ast.AST, of: str) -> Iterator[str]:
    """The constants in of.get(key), of[key] and key in of, and the attributes of.key."""
    for n in ast.walk(tree):
        match n:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(value=key), *_]):
                found = name, key
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                found = name, key
            case ast.Compare(left=ast.Constant(value=key), comparators=[ast.Name(id=name)]):
                found = name, key
            case ast.Attribute(value=ast.Name(id=name), attr=key):
                found = name, key
            case _:
                continue
        if found[0] == of and isinstance(found[1], str):
            yield found[1]


def texts(tree: ast.AST, endings: tuple[str, ...]) -> Iterator[str]:
    held = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return (t for t in held if t.endswith(endings) and " " not in t)


def names(clone: str) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}

    def add(kind: str, given: Iterator[str]) -> None:
        found.setdefault(kind, set()).update(given)

    for revision in REVISIONS.values():
        for tree in trees(clone, revision, "mqbench"):
            add("fake quantizers", (n for n in classes(tree) if n.endswith("FakeQuantize")))
            add("back-ends", members(tree, "BackendType"))
            add("arguments of prepare_by_platform", arguments(tree, "prepare_by_platform"))
            add("arguments of convert_deploy", arguments(tree, "convert_deploy"))
            for of in ("prepare_custom_config_dict", "extra_qparams", "extra_quantizer_dict", "extra_fuse_dict"):
                add(of, keys(tree, of))
        for tree in trees(clone, revision, "mqbench/observer.py"):
            add("observers", (n for n in classes(tree) if n.endswith("Observer")))
        for tree in trees(clone, revision, "mqbench/deploy"):
            add("files", texts(tree, (".json", ".onnx", ".scale")))
        for tree in trees(clone, revision, "mqbench/scheme.py"):
            add("schemes", arguments(tree, "__init__"))
            add("schemes", keys(tree, "kwargs"))
        for tree in trees(clone, revision, "mqbench/convert_deploy.py"):
            add("keywords of convert_deploy", keys(tree, "kwargs"))
        for tree in trees(clone, revision, "mqbench/advanced_ptq.py"):
            add("reconstruction", keys(tree, "config"))
            add("reconstruction", (f.name for f in functions(tree) if f.name == "ptq_reconstruction"))
        for tree in trees(clone, revision, "mqbench/utils/state.py"):
            add("switches", (f.name for f in functions(tree)))
        for tree in trees(clone, revision, "mqbench/nn"):
            add("modules", classes(tree))
    drop = {"self", "get", "update", "items"}
    return {kind: sorted(each - drop) for kind, each in sorted(found.items())}


if __name__ == "__main__":
    content = {"source": "https://github.com/ModelTC/MQBench", "revisions": REVISIONS, "names": names(sys.argv[1])}
    Path(__file__).with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
