"""Prints the name of every module of the library, as installed, from the files of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def modules() -> list[str]:
    """qfunc, qfunc.errors, ..., qfunc.targets.tensorrt."""
    found = []
    for folder in ("qfunc", "specs", "targets"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if parts[0] == "qfunc" else ("qfunc", *parts)
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


if __name__ == "__main__":
    print("\n".join(modules()))
