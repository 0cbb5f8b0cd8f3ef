"""Run artifacts with ExecuTorch."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen

from qfunc.errors import VerifyError
from qfunc.files.fields import require as require_fields
from qfunc.files.json_text import damage_error
from qfunc.files.json_text import parse as parse_json
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes, with_code_outputs
from qfunc.lowering.flatbuffer import Table, parse, table
from qfunc.lowering.runner_support import loading, not_installed, other_kernels, require
from qfunc.lowering.xnnpack.pte import PROGRAM, delegate_of, program
from qfunc.lowering.xnnpack.schema import VALUES, delegate, read
from qfunc.lowering.xnnpack.units import written_units


@frozen
class ExecuTorchRunner:
    """ExecuTorch on the CPU, with the XNNPACK delegate; it runs the examples of a batch one by one.

    Install the extra `executorch`.  Needs the artifact's "model.pte".

    >>> ExecuTorchRunner()
    ExecuTorchRunner()
    """

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("executorch", "executorch")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        return self.session(file_of(artifact.files, "model.pte")).run

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        file, name = file_of(artifact.files, "model.pte"), "model.values.json"
        values = require_fields(VALUES, parse_json(file_of(artifact.files, name), name), name)
        named = with_code_outputs(artifact, sorted(values.items(), key=lambda entry: int(entry[1]["value"])))
        plain, exposed = self.session(file), self.session(_with_outputs(file, list(named.values())))
        last = {n: bool(entry["last"]) for n, entry in named.items()}
        executed = written_units(read(delegate_of(file))[0], {n: entry["value"] for n, entry in named.items()})
        return ModelWithCodes(plain.run, exposed.run, last, joined=True, executed=executed)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes as the target describes, else the reason why it may not."""
        return other_kernels()

    def session(self, file: bytes) -> Session:
        """Return a loaded program, which runs many batches.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        require(self.missing(), "ExecuTorchRunner", "executorch", "executorch 1.5")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations in ExecuTorch's imports
            runtime = importlib.import_module("executorch.runtime").Runtime.get()
        with loading("ExecuTorchRunner", "ExecuTorch"):
            program = runtime.load_program(file)
        try:
            return Session(program.load_method("forward"), (program, file))
        except RuntimeError as error:
            wanted = "a graph that XNNPACK accepts"
            do = "Deploy the model again if the file is damaged; else report the model and the version of ExecuTorch."
            raise VerifyError(where="ExecuTorchRunner", found=str(error), wanted=wanted, do=do) from error


@frozen(eq=False)
class Session:
    """A loaded method, with the program and the bytes that it refers to."""

    method: Any
    owner: tuple[Any, bytes]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch, one example after the other."""
        batches = [torch.as_tensor(i) for i in inputs]
        results = []
        for i in range(len(batches[0])):
            outputs = self.method.execute([b[i : i + 1].contiguous() for b in batches])
            results.append([o.numpy().copy() for o in outputs])
        return [np.concatenate(parts) for parts in zip(*results, strict=True)]


def _with_outputs(file: bytes, entries: Sequence[dict[str, Any]]) -> bytes:
    # Return the file with additional outputs: the values of these entries of model.values.json.
    graph, constants = read(delegate_of(file))
    plans: Any = parse(PROGRAM, "Program", file)["execution_plan"]
    if len(plans) != 1:
        raise damage_error("model.pte", "execution_plan", f"a list of {len(plans)}", "one plan")
    plan = plans[0]
    tensors = [v["val"] for v in plan["values"]]
    count = len(tensors)
    external_ids = {entry["value"]: count + i for i, entry in enumerate(entries)}
    values = [_with_external_id(v, external_ids) for v in graph["xvalues"]]
    outputs = [*graph["output_ids"], *external_ids.values()]
    exposed = Table("XNNGraph", {**graph.fields, "xvalues": values, "num_externs": count + len(entries), "output_ids": outputs})
    shapes = [tuple(t["sizes"]) for t in tensors]
    inputs, real_outputs = shapes[: len(plan["inputs"])], shapes[len(plan["inputs"]) :]
    specs = [(shape, False) for shape in real_outputs] + [(tuple(entry["shape"]), True) for entry in entries]
    return program(delegate(exposed, constants), inputs, specs)


def _with_external_id(value: Table, external_ids: dict[int, int]) -> Table:
    union: Table = value["xvalue_union"]
    if union.kind != "XNNQuantizedTensorValue" or union["tensor_value"]["id_out"] not in external_ids:
        return value
    tensor: Table = union["tensor_value"]
    exposed = Table(tensor.kind, {**tensor.fields, "external_id": external_ids[tensor["id_out"]], "flags": 2})
    return table("XValue", xvalue_union=Table(union.kind, {**union.fields, "tensor_value": exposed}))


__all__ = ["ExecuTorchRunner"]
