"""Run artifacts with ExecuTorch, and find the nodes of XNNPACK's graph that read codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.files.fields import require as require_fields
from qfunc.files.json_text import damage_error
from qfunc.files.json_text import parse as parse_json
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes, ModelWithReals, with_code_outputs
from qfunc.lowering.flatbuffer import Table, parse, table
from qfunc.lowering.machines.process import Machine, is_machine, opened
from qfunc.lowering.runner_support import files_of, loading, not_installed, other_kernels, require, this_cpu
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu
from qfunc.targets.executorch.pte import PROGRAM, delegate_of, program
from qfunc.targets.executorch.schema import VALUES, delegate, read
from qfunc.targets.executorch.session import Session


@readable
@frozen
class ExecuTorchRunner:
    """ExecuTorch on the CPU, with the XNNPACK delegate; it runs the examples of a batch one by one.

    Install the extra `executorch`.  `machine` is another processor, a `Qemu` of ARM64; None is this one.  Needs the artifact's
    "model.pte".

    >>> ExecuTorchRunner()
    ExecuTorchRunner()
    """

    machine: Machine | None = field(default=None, validator=is_machine)

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
        file = file_of(files_of(artifact, "ExecuTorchRunner"), "model.pte")
        run: Callable[[Sequence[Any]], list[Any]] = self.session(file).run
        return run

    def inside(self, artifact: Any) -> ModelWithCodes | ModelWithReals:
        """Return the model with its tensors of codes as outputs; one whose products quantize at run time, with its reals.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        file, name = file_of(files_of(artifact, "ExecuTorchRunner"), "model.pte"), "model.values.json"
        values = require_fields(VALUES, parse_json(file_of(files_of(artifact, "ExecuTorchRunner"), name), name), name)
        graph, _ = read(delegate_of(file))
        if _quantizes_at_run_time(graph):
            exposed = self.session(_with_outputs(file, list(values.values())))
            return ModelWithReals(self.session(file).run, exposed.run, tuple(values))
        named = with_code_outputs(artifact, sorted(values.items(), key=lambda entry: int(entry[1]["value"])))
        plain, exposed = self.session(file), self.session(_with_outputs(file, list(named.values())))
        last = {n: bool(entry["last"]) for n, entry in named.items()}
        executed = _written_units(graph, {n: entry["value"] for n, entry in named.items()})
        return ModelWithCodes(plain.run, exposed.run, last, joined=True, executed=executed)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes as the target describes, else the reason why it may not."""
        return other_kernels() if self.machine is None else ""

    @property
    def cpu(self) -> Cpu:
        """The processor."""
        return this_cpu() if self.machine is None else self.machine.cpu

    def session(self, file: bytes) -> Any:
        """Return a loaded program, which runs many batches.

        Raises:
            VerifyError: ExecuTorch is not installed.
        """
        if self.machine is None:
            require(self.missing(), "ExecuTorchRunner", "executorch", "executorch 1.5")
        with loading("ExecuTorchRunner", "ExecuTorch"):
            session = opened(self.machine, Session, file)
        if refused := session.facts["refused"]:
            wanted = "a graph that XNNPACK accepts"
            do = "Deploy the model again if the file is damaged; else report the model and the version of ExecuTorch."
            raise VerifyError(where="ExecuTorchRunner", found=refused, wanted=wanted, do=do)
        return session


def _with_outputs(file: bytes, entries: Sequence[dict[str, Any]]) -> bytes:
    # Return the file with additional outputs: the values of these entries of model.values.json.
    graph, constants = read(delegate_of(file))
    plans: Any = parse(PROGRAM, "Program", file)["execution_plan"]
    if len(plans) != 1:
        raise damage_error("model.pte", "execution_plan", f"a list of {len(plans)}", "one plan")
    plan = plans[0]
    tensors = [v["val"] for v in plan["values"]]
    count = len(tensors)
    codes = not _quantizes_at_run_time(graph)
    external_ids = {entry["value"]: count + i for i, entry in enumerate(entries)}
    values = [_with_external_id(v, external_ids) for v in graph["xvalues"]]
    outputs = [*graph["output_ids"], *external_ids.values()]
    exposed = Table("XNNGraph", {**graph.fields, "xvalues": values, "num_externs": count + len(entries), "output_ids": outputs})
    shapes = [tuple(t["sizes"]) for t in tensors]
    inputs, real_outputs = shapes[: len(plan["inputs"])], shapes[len(plan["inputs"]) :]
    specs = [(shape, False) for shape in real_outputs] + [(tuple(entry["shape"]), codes) for entry in entries]
    return program(delegate(exposed, constants), inputs, specs)


def _with_external_id(value: Table, external_ids: dict[int, int]) -> Table:
    union: Table = value["xvalue_union"]
    quantized = union.kind == "XNNQuantizedTensorValue"
    tensor: Table = union["tensor_value"] if quantized else union
    if tensor["id_out"] not in external_ids:
        return value
    exposed = Table(tensor.kind, {**tensor.fields, "external_id": external_ids[tensor["id_out"]], "flags": 2})
    return table("XValue", xvalue_union=Table(union.kind, {**union.fields, "tensor_value": exposed}) if quantized else exposed)


def _quantizes_at_run_time(graph: Table) -> bool:
    """Return True if XNNPACK computes scales of an `XNNGraph` while it runs."""
    tensors: list[Table] = [value["xvalue_union"] for value in graph["xvalues"]]
    return any(t.kind == "XNNQuantizedTensorValue" and t["quant_params"].kind == "PerTokenDynamicQuant" for t in tensors)


def _written_units(graph: Table, values: Mapping[str, int]) -> dict[str, str]:
    """Return code tensor -> "integer" if its node reads codes, "float" if it converts reals.

    Args:
        graph: The `XNNGraph`.
        values: The values of the code tensors.
    """
    tensors: list[Table] = [value["xvalue_union"] for value in graph["xvalues"]]
    coded = {t["tensor_value"]["id_out"] for t in tensors if t.kind == "XNNQuantizedTensorValue"}
    nodes: list[Table] = [node["xnode_union"] for node in graph["xnodes"]]
    units: dict[int, str] = {}
    for node in nodes:
        converts: Any = node.kind == "XNNConvert" and node["input_id"] not in coded
        units.setdefault(node["output_id"], "float" if converts else "integer")
    return {name: units[value] for name, value in values.items() if value in units}
