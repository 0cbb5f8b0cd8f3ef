"""Prints the tests that a run skipped for want of a package, one a line: what to run once the package is there.

python .ci/skipped.py junit.xml ...
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent


def skipped(reports: list[Path]) -> list[str]:
    """The ids of what was skipped because something is not installed: cases, functions of which every case was, and files."""
    cases: dict[str, list[tuple[str, bool]]] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            reasons = [each.get("message") or "" for each in case.iter("skipped")]
            missing = any("not installed" in r or "could not import" in r or "No module named" in r for r in reasons)
            place, name = case.get("classname") or "", case.get("name") or ""
            path = "/".join([*filter(None, place.split(".")), *([] if place else name.split("."))]) + ".py"
            if missing and not (ROOT / path).is_file():
                raise SystemExit(f"no file for {place!r}, {name!r}")
            function = f"{path}::{name.partition('[')[0]}" if place else path
            cases.setdefault(function, []).append((f"{path}::{name}" if place else path, missing))
    found = []
    for function, each in cases.items():
        ids = [name for name, missing in each if missing]
        found += [function] if len(ids) == len(each) else ids
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(skipped([Path(report) for report in sys.argv[1:]])))
