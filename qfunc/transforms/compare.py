"""compare: measure the error of the simulation against its float network, tensor by tensor, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.analysis.histogram import Counter
from qfunc.analysis.layer_errors import LayerError, LayerErrors
from qfunc.analysis.lockstep import Lockstep, Pair
from qfunc.analysis.metrics import Sums
from qfunc.execution.batches import require_batches
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.graph.data_movement import commutes
from qfunc.graph.selectors import Context
from qfunc.graph.submodules import require_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.placement.fusion import FusedGroup, match_fusions
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.transforms.explain import explain

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def compare(
    batches: Iterable[Any], progress: bool = True, *, group: ProcessGroup | None = None
) -> Callable[[nn.Module], LayerErrors]:
    """Return a function from a calibrated model to its quantization error, layer by layer: `LayerErrors`.

    There is a row for each quantized tensor, for the output of each op (of each fused group: its last op) and for each
    output of the model. x is the value in the float network, x_hat the value that its readers get in the simulation,
    over all batches: SQNR = 10 log10(sum x^2 / sum (x_hat - x)^2) in dB, cosine = sum x x_hat / sqrt(sum x^2 sum
    x_hat^2), the mean error and the largest error. Quantized tensors also have the SQNR of that quantizer alone, Q(x)
    against x, the share of x that it clips, and a histogram of x.

    Both networks run op by op, in evaluation mode, in one pass over the batches. Memory does not grow with the number of
    batches, and the model does not change. Each submodule that `quantize(submodules=)` quantized gets the inputs that it
    has in the float network, so errors do not pass from one to the next.

    Args:
        batches: As for `calibrate`.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        group: As for `calibrate`; the figures cover the batches of all its processes.
    Raises:
        CalibrationError: there are no batches, or a batch has a wrong structure, or the model is not calibrated.
    Source: the ratio as in Lin, Talathi and Annapureddy, arXiv:1511.06393, section 3.

    >>> import qfunc
    >>> from qfunc import targets
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0)
    >>> calibrated = qfunc.calibrate([torch.tensor([[0.0, 2.55]])])(qfunc.quantize(targets.onnxruntime)(model))
    >>> [(r.tensor, r.slot, round(r.sqnr, 1)) for r in compare([torch.tensor([[1.0, 1.554]])])(calibrated).rows]
    [('input', 'input', 53.3), ('weight', 'weight', inf), ('linear', 'output', 56.1)]
    """
    require_batches(batches, "compare", progress)
    require_group(group, "compare")

    def transform(calibrated: nn.Module) -> LayerErrors:
        parts = require_submodules(calibrated, "calibrated", "compare")
        views = {path: QuantizedModel(part) for path, part in parts.items()}
        comparisons, count, processes = {path: _Comparison(view) for path, view in views.items()}, 0, ranks(group)
        with torch.inference_mode():
            with propagate_errors(processes):
                count = feed_all(calibrated, {path: c.add for path, c in comparisons.items()}, batches, "compare", progress)
            counts = {path: c.state() for path, c in comparisons.items()}
            sites = [q.module.site.name for view in views.values() for q in view.quantizers]
            states, count = gather_counts(counts, count, sites, processes, "compare")
            rows = [row for path, c in comparisons.items() for row in c.rows_of([state[path] for state in states])]
        explanation = explain(calibrated)
        return LayerErrors(explanation.target, count, tuple(rows), explanation)

    return Transform(compare, {"batches": batches, "progress": progress, "group": group}, transform)


class _Row:
    """The sums of one tensor over the batches so far."""

    def __init__(self, module: FakeQuantize | None) -> None:
        self.module = module
        self.constant = module is not None and module.site.constant
        self.sums, self.alone = Sums(), Sums()
        self.counter = Counter(module) if module is not None and not module.dynamic else None

    def state(self) -> tuple[Any, ...]:
        return self.sums.state(), self.alone.state(), None if self.counter is None else self.counter.state()

    def join(self, state: tuple[Any, ...]) -> None:
        """Add the sums of a process."""
        if self.constant and self.sums.totals is not None:
            return
        sums, alone, counts = state
        self.sums.join(*sums)
        self.alone.join(*alone)
        if self.counter is not None:
            self.counter.join(*counts)

    def add(self, pair: Pair, source: Pair) -> None:
        """Add one batch: the values of the tensor, and of its quantizer's input."""
        if self.constant and self.sums.elements:
            return  # every batch has the same weights
        self.sums.add(pair.real, pair.simulated)
        if self.module is None:
            return
        is_first = source.real is source.simulated  # no tensor before this one is quantized
        self.alone.add(pair.real, pair.simulated if is_first else self.module(pair.real))
        if self.counter is not None:
            self.counter.add(pair.real)


class _Comparison:
    def __init__(self, view: QuantizedModel) -> None:
        self.model, self.record = view.evaluation_form, view.record
        network, model = view.float_network, view.evaluation_form
        assert self.record.target is not None
        self.context = Context(network, self.record.target.ops)
        self.nodes = {n.name: n for n in network.graph.nodes}
        target = self.record.target
        self.groups = match_fusions(self.context, target.fusions, target.rules).groups
        self.lockstep = Lockstep(model, self._observe)
        self.quantizers = {n: self.lockstep.ops.module(n) for n in model.graph.nodes if self._is_quantizer(n)}
        self.outputs = {n for node in model.graph.nodes if node.op == "output" for n in node.all_input_nodes}
        group_outputs = {g.output.name for g in self.groups if not commutes(g.root, self.context, target)}
        # If all readers of a tensor get its quantized value, the row of the quantizer suffices.
        real = {n for n in model.graph.nodes if any(user not in self.quantizers for user in n.users)}
        self.unquantized = {n for n in real if n.name in group_outputs} | (self.outputs - self.quantizers.keys())
        self.rows: dict[fx.Node, _Row] = {}

    def _is_quantizer(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(self.model.get_submodule(str(node.target)), FakeQuantize)

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Compare one batch; return the value of the float network."""
        return self.lockstep.run(arguments, f"compare, batch {number}")

    def state(self) -> dict[str, Any]:
        """Return the sums by names of nodes."""
        return {node.name: row.state() for node, row in self.rows.items()}

    def rows_of(self, states: list[dict[str, Any]]) -> list[LayerError]:
        """Return the rows for the sums of some processes, by depth."""
        nodes, rows = {n.name: n for n in self.model.graph.nodes}, dict[fx.Node, _Row]()
        for name, state in (item for by_name in states for item in by_name.items()):
            rows.setdefault(nodes[name], _Row(self.quantizers.get(nodes[name]))).join(state)
        depths = _depths(self.nodes, self.groups)
        order = [n for n in self.model.graph.nodes if n in rows]
        return sorted((self._row(node, rows[node], depths) for node in order), key=lambda row: row.depth)

    def _observe(self, node: fx.Node, values: dict[fx.Node, Pair]) -> None:
        pair = values[node]
        has_row = node in self.quantizers or node in self.unquantized
        if not has_row or not isinstance(pair.real, Tensor) or not pair.real.is_floating_point():
            return
        if node not in self.rows:
            self.rows[node] = _Row(self.quantizers.get(node))
        self.rows[node].add(pair, values[node.all_input_nodes[0]] if node in self.quantizers else pair)

    def _row(self, node: fx.Node, row: _Row, depths: dict[str, int]) -> LayerError:
        site = row.module.site if row.module else None
        tensor = node
        while tensor.name not in self.nodes:  # a quantizer or a dropout
            tensor = tensor.all_input_nodes[0]
        fact = self.context.fact(self.nodes[tensor.name])
        readers = [depths[user.name] for user in node.users if user.name in depths]
        depth = min(readers, default=0) if site is not None and site.constant else depths[tensor.name]
        return LayerError(
            tensor=site.name if site else fact.path,
            kind=self.context.kind(self.nodes[tensor.name]),
            slot=site.slot if site else "",
            op=site.op if site else fact.path,
            depth=depth,
            source=fact.source,
            output=node in self.outputs,
            agreement=row.sums.agreement(),
            alone=row.alone.agreement() if site else None,
            histogram=row.counter.histogram() if row.counter else None,
        )


def _depths(nodes: dict[str, fx.Node], groups: tuple[FusedGroup, ...]) -> dict[str, int]:
    # Return the number of units on the longest path from an input to each tensor, the tensor's own unit included.
    roots, inner = {g.root.name for g in groups}, {n.name for g in groups for n in g.nodes[1:]}
    depths: dict[str, int] = {}
    for name, node in nodes.items():
        before = max((depths[n.name] for n in node.all_input_nodes), default=0)
        depths[name] = before + (name in roots and name not in inner)
    return depths
