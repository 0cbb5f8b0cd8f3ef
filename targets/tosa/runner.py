"""Run artifacts with the reference model of TOSA."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.errors import VerifyError
from qfunc.files.fields import require as require_fields
from qfunc.files.json_text import damage_error, parse
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes, with_code_outputs
from qfunc.lowering.flatbuffer import Table
from qfunc.lowering.runner_support import files_of, not_installed, require
from qfunc.targets.tosa.schema import VALUES, block_of, serialize_block


@frozen
class TosaRunner:
    """TOSA's reference model on the CPU, which defines TOSA's results; it runs the examples of a batch one by one.

    `model.values.json` has the qparams by which the runner quantizes the inputs and dequantizes the outputs.  Install the
    extra `tosa`.  Needs the artifact's "model.tosa".

    >>> TosaRunner()
    TosaRunner()
    """

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("tosa_reference_model", "tosa-tools")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: the reference model is not installed, or rejects the file.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: the reference model is not installed, or rejects the file.
        """
        return self.session(files_of(artifact, "TosaRunner")).run

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: the reference model is not installed.
        """
        block = block_of(file_of(files_of(artifact, "TosaRunner"), "model.tosa"))
        values = _values(files_of(artifact, "TosaRunner"))
        named = with_code_outputs(artifact, values["tensors"].items())
        outputs = [*block["outputs"], *(entry["tensor"] for entry in named.values())]
        exposed = Session(self._model(), serialize_block(Table(block.kind, {**block.fields, "outputs": outputs})), values)
        channels_last = {name: bool(entry["last"]) for name, entry in named.items()}
        return ModelWithCodes(self.session(files_of(artifact, "TosaRunner")).run, exposed.codes, channels_last, joined=True)

    def comparable(self, artifact: Any = None) -> str:
        """Return "": the model computes on integers, so that every CPU gives the same results."""
        return ""

    def session(self, files: Mapping[str, bytes]) -> Session:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: the reference model is not installed.
        """
        return Session(self._model(), file_of(files, "model.tosa"), _values(files))

    def _model(self) -> Any:
        require(self.missing(), "TosaRunner", "tosa", "tosa-tools 2026.8")
        return importlib.import_module("tosa_reference_model")


def _values(files: Mapping[str, bytes]) -> dict[str, Any]:
    # Return model.values.json: the scales and zero points of the file's codes.
    name = "model.values.json"
    values: dict[str, Any] = require_fields(VALUES, parse(file_of(files, name), name), name)
    return values


@contextmanager
def _capture_output() -> Iterator[list[str]]:
    # Capture the output of the reference model, which prints warnings and errors to C's streams.
    text: list[str] = []
    flush = ctypes.CDLL(None).fflush if os.name == "posix" else lambda _: None
    sys.stdout.flush()
    sys.stderr.flush()
    flush(None)
    saved = [os.dup(stream) for stream in (1, 2)]
    with tempfile.TemporaryFile() as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield text
        finally:
            flush(None)
            for stream, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, stream)
                os.close(descriptor)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))


@frozen(eq=False)
class Session:
    """A file that the reference model runs, with the qparams of its inputs and outputs."""

    model: Any
    file: bytes
    values: dict[str, Any]

    def codes(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of the file for one batch of real inputs, one example after the other.

        Raises:
            VerifyError: the reference model rejects the file, or reports that its result is unpredictable.
        """
        codes = []
        for entry, values in self._given("inputs", inputs):
            steps = np.rint(values.astype(np.float32) / np.float32(entry["scale"]))
            codes.append(np.clip(steps + entry["zero_point"], -128, 127).astype(np.int8))
        codes += [values.astype(np.int32) for _, values in self._given("indices", inputs)]
        results, status_name = [], ""
        with _capture_output() as text:
            for i in range(len(codes[0]) if codes else 1):
                outputs, status = self.model.run(self.file, [np.ascontiguousarray(b[i : i + 1]) for b in codes])
                status_name = status_name or ("" if status == self.model.GraphStatus.TOSA_VALID else status.name)
                results.append(outputs)
        if status_name:
            do = "Report the file to qfunc, or verify with another runtime."
            output = " ".join(line for line in text[0].splitlines() if not line.startswith("WARNING"))[-500:]
            raise VerifyError(where="TosaRunner", found=f"{status_name} {output}".strip(), wanted="TOSA_VALID", do=do)
        return [np.concatenate([np.atleast_1d(p) for p in parts]) for parts in zip(*results, strict=True)]

    def _given(self, field: str, inputs: Sequence[Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        # The entries of model.values.json with the values of their inputs.
        for number, entry in enumerate(self.values.get(field, ())):
            if entry["input"] >= len(inputs):
                wanted = f"one of {len(inputs)} inputs"
                raise damage_error("model.values.json", f"{field}[{number}].input", str(entry["input"]), wanted)
            yield entry, np.asarray(inputs[entry["input"]])

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch, in real values."""
        return self.real(self.codes(inputs))

    def real(self, codes: Sequence[Any]) -> list[Any]:
        """Return the real values of the outputs' codes."""
        entries = self.values["outputs"]
        if len(entries) != len(codes):
            wanted = f"one of {len(codes)}, as the file has"
            raise damage_error("model.values.json", "outputs", f"a list of {len(entries)}", wanted)
        pairs = zip(codes, entries, strict=True)
        return [(c.astype(np.float32) - entry["zero_point"]) * np.float32(entry["scale"]) for c, entry in pairs]
