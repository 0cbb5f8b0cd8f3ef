"""Prints the tests that a run skipped for want of a package, one function a line: what to run once the package is there.

python .ci/skipped.py junit.xml ...
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent


def functions(report: Path) -> set[str]:
    """The ids of the functions of which a case was skipped because something is not installed; whole files, too."""
    found = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        reasons = [skipped.get("message") or "" for skipped in case.iter("skipped")]
        if any("not installed" in r or "could not import" in r or "No module named" in r for r in reasons):
            place, name = case.get("classname") or "", (case.get("name") or "").partition("[")[0]
            path = "/".join([*filter(None, place.split(".")), *([] if place else name.split("."))]) + ".py"
            if not (ROOT / path).is_file():
                raise SystemExit(f"no file for {place!r}, {name!r}")
            found.add(f"{path}::{name}" if place else path)
    return found


if __name__ == "__main__":
    print("\n".join(sorted({function for report in sys.argv[1:] for function in functions(Path(report))})))
