"""Rows of a sweep on disk, so that a sweep that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict
from torch import fx

from qfunc.errors import FileError
from qfunc.execution.batches import warn_caller
from qfunc.files.folder import is_plain_name
from qfunc.files.whole import require_writable, write
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Target
from qfunc.sweeps.digest import UnstableError, digest, digest_of_batches
from qfunc.sweeps.report import NO_LOWERING, SweepRow


class Stored:
    """The rows in a folder: `NAME.json` has a row and the digest of what it was measured on, `NAME` the files of the target.

    Args:
        folder: New or empty, or the folder of an earlier sweep.
        digest: The digest of all that the targets share, of `shared_digest`.
    Raises:
        FileError: the folder cannot be made or written, or a name of a target is no name of a file.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Iterable[str], digest: str) -> None:
        self.folder, self.digest = Path(folder).resolve(), digest
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            where, found = f"sweep, folder {str(folder)!r}", (e.strerror or str(e)).lower()
            found = "a file" if self.folder.exists() else found
            raise FileError(where=where, found=found, wanted="a folder", do="Choose the path of a folder.") from e
        for name in names:
            if not is_plain_name(name):
                do = "Pass a dict of short names to targets."
                raise FileError(where="sweep, targets", found=repr(name), wanted="names of files", do=do)
            require_writable(self.folder / f"{name}.json")

    def row(self, name: str, target: Target) -> SweepRow | None:
        """Return the stored row of a target; None if there is none, if it is of other values, or if a step failed."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["digest"] != self._digest(target):
                return None
            row = SweepRow(**found["row"])
        except (ValueError, KeyError, TypeError) as e:
            do = "Delete it, so that the target is measured again."
            raise FileError(where=str(path), found=f"a damaged row ({e})", wanted="a row of sweep", do=do) from e
        if row.why not in ("", NO_LOWERING):
            return None
        return row if row.size is None or (self.folder / name).is_dir() else None

    def artifact(self, name: str) -> Artifact:
        """Return the stored files of a target."""
        return Artifact({path.name: path.read_bytes() for path in (self.folder / name).iterdir()})

    def write(self, target: Target, row: SweepRow, artifact: Artifact | None) -> None:
        """Store the files of a target, then its row."""
        path = self.folder / f"{row.name}.json"
        path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / row.name, ignore_errors=True)
        if artifact is not None:
            artifact.save(self.folder / row.name)
        write(path, [json.dumps({"digest": self._digest(target), "row": asdict(row)}, indent=1).encode()])

    def _digest(self, target: Target) -> str:
        found = _or_new("targets", lambda: digest(target))
        return hashlib.sha256(f"{self.digest}\n{found}".encode()).hexdigest()


def shared_digest(network: fx.GraphModule, functions: Mapping[str, Any], batches: Mapping[str, Iterable[Any]]) -> str:
    """Return a digest of a float network, of functions, and of batches, both by the name of their argument.

    Where no digest is possible it is a new one, so that no stored row has it; one warning names the argument.
    """
    found = [digest((str(network.code), sorted(network.state_dict().items())))]
    found += [_or_new(name, partial(digest, function)) for name, function in functions.items()]
    found += [_or_new(name, partial(digest_of_batches, given)) for name, given in batches.items()]
    return hashlib.sha256(" ".join(found).encode()).hexdigest()


def _or_new(name: str, make: Callable[[], str]) -> str:
    try:
        return make()
    except (UnstableError, RecursionError) as e:
        warn_caller(f"sweep, {name}: no digest can be made of {e}, so rows are measured again.")
        return secrets.token_hex(32)
