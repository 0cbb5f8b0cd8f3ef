"""The reference model of TOSA as a runner of artifacts."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.errors import VerifyError
from qfunc.files.fields import require as require_fields
from qfunc.files.json_text import damaged, parse
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes, with_code_outputs
from qfunc.lowering.flatbuffer import Table
from qfunc.lowering.runner_support import not_installed, require
from qfunc.lowering.tosa.schema import VALUES, block_of, serialize_block


@frozen
class TosaRunner:
    """TOSA's reference model on the CPU, which defines what TOSA computes; it runs the examples of a batch one by one.

    Real inputs become codes, and codes real outputs, outside, by `model.values.json`.  It is the extra `tosa`, imported where
    it runs.  Needs the artifact's "model.tosa".

    >>> TosaRunner()
    TosaRunner()
    """

    def missing(self) -> str:
        """Return "" if it can run, else what is missing."""
        return not_installed("tosa_reference_model", "tosa-tools")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: the reference model is not installed, or does not take the file.
        """
        return self.opened(artifact.files).run(inputs)

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return a view of the tensors of codes inside.

        Raises:
            VerifyError: the reference model is not installed.
        """
        values = _values(artifact.files)
        named = with_code_outputs(artifact, values["tensors"].items())
        block = block_of(file_of(artifact.files, "model.tosa"))
        outputs = [*block["outputs"], *(v["tensor"] for v in named.values())]
        exposed = Opened(self._model(), serialize_block(Table(block.kind, {**block.fields, "outputs": outputs})), values)
        return ModelWithCodes(self.opened(artifact.files).run, exposed.codes, {n: bool(v["last"]) for n, v in named.items()})

    def comparable(self, artifact: Any = None) -> str:
        """ "" : it computes on integers, the same on every CPU."""
        return ""

    def opened(self, files: Mapping[str, bytes]) -> Opened:
        """Return a model, for many batches.

        Raises:
            VerifyError: the reference model is not installed.
        """
        return Opened(self._model(), file_of(files, "model.tosa"), _values(files))

    def _model(self) -> Any:
        require(self.missing(), "TosaRunner", "tosa", "tosa-tools 2026.8")
        return importlib.import_module("tosa_reference_model")


def _values(files: Mapping[str, bytes]) -> dict[str, Any]:
    # What the artifact tells of the codes of the file.
    name = "model.values.json"
    values: dict[str, Any] = require_fields(VALUES, parse(file_of(files, name), name), name)
    return values


@contextmanager
def _said() -> Iterator[list[str]]:
    # What the reference model prints, by C's own streams: two warnings of versions at each run, and its errors.
    text: list[str] = []
    flush = ctypes.CDLL(None).fflush if os.name == "posix" else lambda _: None
    sys.stdout.flush()
    sys.stderr.flush()
    flush(None)
    before = [os.dup(stream) for stream in (1, 2)]
    with tempfile.TemporaryFile() as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield text
        finally:
            flush(None)
            for stream, own in zip((1, 2), before, strict=True):
                os.dup2(own, stream)
                os.close(own)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))


@frozen(eq=False)
class Opened:
    """The reference model, a file, and the qparams of its inputs and outputs."""

    model: Any
    file: bytes
    values: dict[str, Any]

    def codes(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of the file for one batch of real inputs, one example after the other.

        Raises:
            VerifyError: the reference model does not take the file, or calls what it computes unpredictable.
        """
        batches = [np.asarray(i, np.float32) for i in inputs]
        given = []
        for i, end in enumerate(self.values["inputs"]):
            if end["input"] >= len(batches):
                wanted = f"one of {len(batches)} inputs"
                raise damaged("model.values.json", f"inputs[{i}].input", str(end["input"]), wanted)
            steps = np.rint(batches[end["input"]] / np.float32(end["scale"]))
            given.append(np.clip(steps + end["zero_point"], -128, 127).astype(np.int8))
        found, wrong = [], ""
        with _said() as text:
            for place in range(len(batches[0])):
                outputs, status = self.model.run(self.file, [np.ascontiguousarray(b[place : place + 1]) for b in given])
                wrong = wrong or ("" if status == self.model.GraphStatus.TOSA_VALID else status.name)
                found.append(outputs)
        if wrong:
            do = "Report it with the file, or verify by another runtime."
            told = " ".join(line for line in text[0].splitlines() if not line.startswith("WARNING"))[-500:]
            raise VerifyError(where="TosaRunner", found=f"{wrong} {told}".strip(), wanted="TOSA_VALID", do=do)
        return [np.concatenate(each) for each in zip(*found, strict=True)]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch, in real values."""
        return self.real(self.codes(inputs))

    def real(self, codes: Sequence[Any]) -> list[Any]:
        """Return the real values of the outputs' codes."""
        ends = self.values["outputs"]
        if len(ends) != len(codes):
            raise damaged("model.values.json", "outputs", f"a list of {len(ends)}", f"one of {len(codes)}, as the file has")
        return [(c.astype(np.float32) - e["zero_point"]) * np.float32(e["scale"]) for c, e in zip(codes, ends, strict=True)]


__all__ = ["TosaRunner"]
