"""Runs the README's examples and compares what they print with what it says.

    python .ci/readme.py [--write]

Blocks come in pairs, ```python or ```sh followed by ```text.  In the output of a program, what differs
between machines (accuracies, sizes and times in the last column) counts only by its unit.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BODY = r"((?:(?!```).)*)"
PAIR = re.compile(rf"```(python|sh)\n{BODY}```\n+```text\n{BODY}```", re.DOTALL)


def produced(language: str, code: str) -> str:
    """What an example prints, in a new process, in the checkout."""
    program = [sys.executable, "-c", code] if language == "python" else [sys.executable, *code.split("python ")[-1].split()]
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # small tensors; other work may share the cores
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"an example of the README fails:\n{code}\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def comparable(text: str) -> str:
    """The text with measured figures masked."""
    return re.sub(r" +[\d.,]+ (%|ms|bytes|dB)", r" N \1", text)


def main(write: bool) -> int:
    """0 if every block is what its example prints."""
    path = ROOT / "README.md"
    readme = path.read_text()
    pairs = list(PAIR.finditer(readme))
    wrong = abs(readme.count("```text") - len(pairs)) + abs(readme.count("```python") + readme.count("```sh") - len(pairs))
    for pair in reversed(pairs):
        language, code, told = pair.groups()
        output = produced(language, code)
        if comparable(output) == comparable(told):
            continue
        wrong += 1
        print("".join(difflib.unified_diff(told.splitlines(True), output.splitlines(True), "README.md", "regenerated")))
        readme = readme[: pair.start(3)] + output + readme[pair.end(3) :]
    if write:
        path.write_text(readme)
    print(f"README: {len(pairs)} blocks of output, {wrong} out of date")
    return 1 if (wrong and not write) or not pairs else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv))
