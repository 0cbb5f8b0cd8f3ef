"""The tensors that the emulation computes for one batch, in the order of the network."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.emulation.builder import codes_names
from qfunc.emulation.teacher_forcing import code_nodes
from qfunc.emulation.writer import build_emulation
from qfunc.graph.arguments import flatten, with_fixed_arguments
from qfunc.graph.data_movement import commutes, only_moves_codes
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import FloatKernel
from qfunc.specs.protocols import FlippingRunner
from qfunc.transforms.verification.outputs import lsb_of_output, outputs_of


@frozen(eq=False)
class Expected:
    """One tensor: codes, or an output of the model.

    Attributes:
        name: "conv" or "output 0".
        shown: The name of the tensor of codes, None for an output.
        value: The codes as integers, or the output's real values.
        step: The value of one code; 1 for codes.
        exact: True if the runtime computes the same, bit for bit, from the inputs of the model on.
    """

    name: str
    shown: str | None
    value: Tensor
    step: float
    exact: bool


def expected_tensors(partition: Partition, leaves: list[Tensor], shown: Set[str]) -> list[Expected]:
    """Emulate one batch; return the tensors of codes whose names are in `shown`, and then the outputs."""
    emulation = build_emulation(partition)
    codes, exact = code_nodes(partition, emulation, shown), _exact_nodes(partition)
    nodes_of_codes = {codes: name for name, codes in codes_names(partition.network.graph).items()}
    found: dict[str, Expected] = {}

    def observe(name: str, value: Tensor) -> None:
        path, _ = codes[name]
        node = partition.nodes[nodes_of_codes.get(name, name)]
        found.setdefault(path, Expected(path, f"{path}.codes", _integers(value), 1.0, node in exact))

    with torch.inference_mode():
        interpreter = ObservingInterpreter(emulation, observe, {*codes})
        value = interpreter.run(*with_fixed_arguments(emulation, leaves), enable_io_processing=False)
    outputs = [v for v in flatten(value) if isinstance(v, Tensor)]
    _, nodes = outputs_of(partition)
    of_nodes = [node in exact for node in nodes] if len(nodes) == len(outputs) else [False] * len(outputs)
    rows = zip(outputs, of_nodes, strict=True)
    last = [Expected(f"output {i}", None, v, lsb_of_output(partition, i, v), e) for i, (v, e) in enumerate(rows)]
    return [*found.values(), *last]


def _integers(codes: Tensor) -> Tensor:
    # In the smallest type that holds them.
    low, high = (int(codes.min()), int(codes.max())) if codes.numel() else (0, 0)
    types = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    return codes.to(next(t for t in types if torch.iinfo(t).min <= low and high <= torch.iinfo(t).max))


def _exact_nodes(partition: Partition) -> set[fx.Node]:
    """Return the nodes whose values are exact, as all those before them are."""
    runtime = partition.target.runtime
    compared = not runtime.builds or runtime.cpu == runtime.builds[0].cpu  # the processor of the kernels in float
    alone = partition.exact_nodes([] if compared else [u.kind for u in partition.units if _is_curve(u)])
    found = {n for n in partition.network.graph.nodes if n.op in ("placeholder", "get_attr")}
    runner: Any = runtime.runner
    if isinstance(runner, FlippingRunner) and runner.flips:
        return found
    for unit in partition.units:
        inside = unit.group.nodes
        read = (source for n in inside for source in n.all_input_nodes if source not in inside)
        if (unit.group.output in alone or _moves(partition, unit)) and found.issuperset(read):
            found.add(unit.group.output)
    return found


def _is_curve(unit: Unit) -> bool:
    # A curve or norm in float rounds more than once, in the order of the processor that it was compared on.
    arithmetic = None if unit.kernel is None or unit.integer else unit.kernel.arithmetic
    return arithmetic is not None and not (isinstance(arithmetic, FloatKernel) and not arithmetic.function)


def _moves(partition: Partition, unit: Unit) -> bool:
    # A move in float between equal qparams, such as a padding, gives the codes that it gets; between others it rounds.
    root, output = unit.group.root, partition.output_encoding(unit.group.output)
    read = [e for n in root.all_input_nodes if (e := partition.encoding(n, root)) is not None]
    only_moves = commutes(root, partition.context, partition.target) and only_moves_codes(root)
    return only_moves and root is unit.group.output and (output is None or all(e.same(output) for e in read))
