"""Prints every skipped test with its reason; fails on one that no line of the list expects.

python .ci/skips.py junit.xml ... tests/expected_skips.txt
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree


def main(reports: list[Path], expected: Path) -> int:
    """0 if every skip is expected."""
    lines = [line.strip() for line in expected.read_text().splitlines() if line.strip() and not line.startswith("#")]
    patterns = [tuple(part.strip() for part in line.split("|", 1)) for line in lines]
    unexpected = 0
    cases = [case for report in reports for case in ElementTree.parse(report).getroot().iter("testcase")]
    for case in cases:
        for skipped in case.iter("skipped"):
            name, reason = f"{case.get('classname')}.{case.get('name')}", skipped.get("message") or ""
            known = any(fnmatch(name, a) and fnmatch(reason, b) for a, b in patterns)
            unexpected += not known
            print(f"skipped{'' if known else ', not expected'}: {name}: {reason}")
    print(f"{len(cases)} tests, {unexpected} unexpected skips")
    return 1 if unexpected or not cases else 0


if __name__ == "__main__":
    sys.exit(main([*map(Path, sys.argv[1:-1])], Path(sys.argv[-1])))
