"""The folder of finished layers, from which an interrupted stream goes on, and the folder of the result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qfunc.errors import DeployError
from qfunc.files.fields import Keyed, Text, require
from qfunc.files.json_text import parse
from qfunc.files.part import Part, file_of_part, read_part
from qfunc.files.whole import write
from qfunc.lowering.artifact import REPORT

_INDEX = "stream.json"


class Parts:
    """The finished parts of one stream, in the folder OUTPUT.parts until OUTPUT is complete.

    Args:
        output: The folder of the result, new or empty.
        digests: What the parts depend on, by name: digests or texts.
    Raises:
        DeployError: the folder of the result has files, or that of the parts is of another stream.
    """

    def __init__(self, output: Path, digests: Mapping[str, str]) -> None:
        self.output, self.folder = output, output.with_name(f"{output.name}.parts")
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            do = "Choose a new or empty folder."
            raise DeployError(where=f"stream, output {str(output)!r}", found="files", wanted="an empty folder", do=do)
        self.folder.mkdir(parents=True, exist_ok=True)
        index = self.folder / _INDEX
        for draft in self.folder.glob(".*"):
            draft.unlink()  # of a file that was not finished
        if not self.finished():
            index.unlink(missing_ok=True)
            if others := sorted(p.name for p in self.folder.iterdir()):
                self._refuse(f"other files ({', '.join(others[:3])})", "an empty folder, or the parts of this stream")
            write(index, [(json.dumps(dict(digests), indent=1, sort_keys=True) + "\n").encode()])
            return
        stored = require(Keyed(Text()), parse(index.read_bytes(), str(index)), str(index))
        for name, digest in digests.items():
            if stored.get(name) != digest:
                self._refuse(f"parts of another stream, by its {name}", "the parts of this one")

    def _refuse(self, found: str, wanted: str) -> None:
        do = "Delete that folder, or choose another output."
        raise DeployError(where=f"stream, {str(self.folder)!r}", found=found, wanted=wanted, do=do)

    def finished(self) -> int:
        """Return how many parts are finished, from the first on."""
        number = 0
        while self._path(number).is_file():
            number += 1
        return number

    def add(self, number: int, part: Part) -> None:
        """Store a part."""
        write(self._path(number), file_of_part(part))

    def read(self, count: int) -> list[Part]:
        """Return the first parts; their tensors are read when they are due."""
        return [read_part(self._path(i)) for i in range(count)]

    def finish(self, files: Mapping[str, Iterable[bytes]], report: Mapping[str, Any]) -> Path:
        """Write the result beside the parts, move it to its place, and delete the parts."""
        draft = self.folder / "output"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        digests = {name: write(draft / name, chunks) for name, chunks in files.items()}
        text = json.dumps({**report, "files": dict(sorted(digests.items()))}, indent=1, sort_keys=True) + "\n"
        write(draft / REPORT, [text.encode()])
        if self.output.exists():
            self.output.rmdir()
        os.replace(draft, self.output)
        shutil.rmtree(self.folder)
        return self.output

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05}.safetensors"
