"""ExecuTorch as a runner of artifacts."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen

from qfunc.errors import VerifyError
from qfunc.files.fields import require as require_fields
from qfunc.files.json_text import damaged
from qfunc.files.json_text import parse as parse_json
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes, with_code_outputs
from qfunc.lowering.flatbuffer import Table, parse, table
from qfunc.lowering.runner_support import loading, not_installed, other_kernels, require
from qfunc.lowering.xnnpack.pte import PROGRAM, delegate_of, program
from qfunc.lowering.xnnpack.schema import VALUES, delegate, read


@frozen
class ExecuTorchRunner:
    """ExecuTorch on the CPU, by the XNNPACK delegate; it runs the examples of a batch one by one.

    It is the extra `executorch`, imported where it runs.  Needs the artifact's "model.pte".

    >>> ExecuTorchRunner()
    ExecuTorchRunner()
    """

    def missing(self) -> str:
        """Return "" if it can run, else what is missing."""
        return not_installed("executorch", "executorch")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        return self.opened(file_of(artifact.files, "model.pte")).run(inputs)

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return a view of the tensors of codes inside.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        file, name = file_of(artifact.files, "model.pte"), "model.values.json"
        values = require_fields(VALUES, parse_json(file_of(artifact.files, name), name), name)
        named = with_code_outputs(artifact, sorted(values.items(), key=lambda entry: int(entry[1]["value"])))
        plain, exposed = self.opened(file), self.opened(_with_outputs(file, list(named.values())))
        return ModelWithCodes(plain.run, exposed.run, {n: bool(v["last"]) for n, v in named.items()})

    def comparable(self, artifact: Any = None) -> str:
        """ "" where it computes as the target says, else why it may not on this CPU."""
        return other_kernels()

    def opened(self, file: bytes) -> Opened:
        """Return a loaded program, for many batches.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        require(self.missing(), "ExecuTorchRunner", "executorch", "executorch 1.5")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own imports' deprecations
            runtime = importlib.import_module("executorch.runtime").Runtime.get()
        with loading("ExecuTorchRunner", "ExecuTorch"):
            program = runtime.load_program(file)
        try:
            return Opened(program.load_method("forward"), (program, file))
        except RuntimeError as error:
            do = "Keep s_x * s_w / s_y of products below 2^8, and s_x / s_y of sums within [2^-10, 2^8)."
            raise VerifyError(where="ExecuTorchRunner", found=str(error), wanted="a graph that XNNPACK takes", do=do) from error


@frozen(eq=False)
class Opened:
    """A loaded method, and what it reads as long as it lives."""

    method: Any
    held: tuple[Any, bytes]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch, one example after the other."""
        batches = [torch.as_tensor(i) for i in inputs]
        found = []
        for place in range(len(batches[0])):
            outputs = self.method.execute([b[place : place + 1].contiguous() for b in batches])
            found.append([o.numpy().copy() for o in outputs])
        return [np.concatenate(each) for each in zip(*found, strict=True)]


def _with_outputs(file: bytes, chosen: Sequence[dict[str, Any]]) -> bytes:
    # The file with those of its values as further outputs.
    graph, constants = read(delegate_of(file))
    plans: Any = parse(PROGRAM, "Program", file)["execution_plan"]
    if len(plans) != 1:
        raise damaged("model.pte", "execution_plan", f"a list of {len(plans)}", "one plan")
    plan = plans[0]
    tensors = [v["val"] for v in plan["values"]]
    count = len(tensors)
    numbers = {entry["value"]: count + i for i, entry in enumerate(chosen)}
    values = [_external(v, numbers) for v in graph["xvalues"]]
    outputs = [*graph["output_ids"], *numbers.values()]
    changed = Table("XNNGraph", {**graph.fields, "xvalues": values, "num_externs": count + len(chosen), "output_ids": outputs})
    shapes = [tuple(t["sizes"]) for t in tensors]
    ends = [(s, False) for s in shapes[len(plan["inputs"]) :]] + [(tuple(e["shape"]), True) for e in chosen]
    return program(delegate(changed, constants), shapes[: len(plan["inputs"])], ends)


def _external(value: Table, numbers: dict[int, int]) -> Table:
    union: Table = value["xvalue_union"]
    if union.kind != "XNNQuantizedTensorValue" or union["tensor_value"]["id_out"] not in numbers:
        return value
    held: Table = union["tensor_value"]
    shown = Table(held.kind, {**held.fields, "external_id": numbers[held["id_out"]], "flags": 2})
    return table("XValue", xvalue_union=Table(union.kind, {**union.fields, "tensor_value": shown}))


__all__ = ["ExecuTorchRunner"]
