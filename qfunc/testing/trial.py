"""One model on one target: everything that must agree, and a readable word where it does not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import EmulationError
from qfunc.graph.coding import Coding
from qfunc.graph.fold import read_attr
from qfunc.graph.network import Walk, seats
from qfunc.graph.units import Partition, Unit
from qfunc.graph.vocabulary import is_constant, kind_of
from qfunc.lowering.artifact import Artifact
from qfunc.specs import AveragePool, Int, Log, Scheme, Target, Unknown
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.deploy import deploy, run_evaluated
from qfunc.transforms.emulate import emulate
from qfunc.transforms.quantize import quantize
from qfunc.transforms.reconcile import hold
from qfunc.transforms.report import Report
from qfunc.transforms.verify import verify


class Trial:
    """A model, an input, and a target with its runner."""

    def __init__(self, target: Target, run: Any, model: nn.Module, example: Tensor) -> None:
        self.target, self.model, self.example = target, model, example
        self.run = run if run is not None else target.runtime.runner
        self.public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)

    def check(self, *, powers_of_two: bool) -> None:
        """Checks the model as calibrated, or with all scales rounded up to powers of two.

        Raises:
            AssertionError: what does not hold, and on which model.
        """
        try:
            calibrated = self._calibrated(powers_of_two)
            artifact = self._deployed(calibrated)
            if self.public:
                self._pure(calibrated, "emulate", emulate(self.target))
                self._simulation(calibrated)
                self._runtime(calibrated)
            else:
                self._refused(calibrated)
                self._evaluated(calibrated, artifact)
        except AssertionError as e:
            scales = " with scales rounded up to powers of two" if powers_of_two else ""
            shape = tuple(self.example.shape)
            raise AssertionError(
                f"check_target({self.target.name}){scales}: {e}\nThe model: {self.model!r}\nIts input: {shape}"
            ) from e

    def _calibrated(self, powers_of_two: bool) -> fx.GraphModule:
        quantized = self._pure(self.model, "quantize", quantize(self.target))
        calibrated: fx.GraphModule = self._pure(quantized, "calibrate", calibrate([self.example], progress=False))
        return _rounded(calibrated) if powers_of_two else calibrated

    def _pure(self, model: nn.Module, name: str, transform: Callable[[Any], Any]) -> Any:
        before = _state(model)
        result = transform(model)
        changed = [k for k, (a, b) in _pairs(before, _state(model)) if not _equal(a, b)]
        assert not changed, f"{name} changed its input: {', '.join(changed[:3])}"
        return result

    def _deployed(self, calibrated: fx.GraphModule) -> Artifact | None:
        if self.target.lowering is None:
            return None
        artifact: Artifact = self._pure(calibrated, "deploy", deploy(self.target))
        if "model.onnx" in artifact.files:
            self._constants(calibrated, artifact)
        return artifact

    def _constants(self, calibrated: fx.GraphModule, artifact: Artifact) -> None:
        # The integers in the artifact, read back, against those that the simulation multiplies with.
        import onnx

        proto = onnx.load_from_string(artifact.files["model.onnx"])
        held = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
        for node in calibrated.graph.nodes:
            if kind_of(node) != "fake_quantize" or not is_constant(node.all_input_nodes[0]):
                continue
            source = node.all_input_nodes[0]
            module: Any = calibrated.get_submodule(str(node.target))
            if not isinstance(module.site.scheme.format, Int):
                continue
            stored = held.get(f"{source.target}.codes")
            if stored is None:
                continue
            scale, zero, _ = module.qparams()
            with torch.no_grad():
                simulated = torch.round(module(read_attr(calibrated, source)).double() / scale.double()) + zero
            wanted = torch.from_numpy(stored.astype("float64"))
            differ = int((simulated.reshape(wanted.shape) != wanted).sum())
            assert not differ, f"{differ} integers of {source.target!r} in the artifact are not those of the simulation"

    def _simulation(self, calibrated: fx.GraphModule) -> None:
        partition = Partition(calibrated, self.target)
        forced = _Forced(calibrated, partition, emulate(self.target)(calibrated))
        forced.check(self.example)

    def _runtime(self, calibrated: fx.GraphModule) -> None:
        if self.run is None:
            return
        report = verify(self.target, self.run)(calibrated, [self.example, 2 * self.example.flip(0)])
        good = report.verdict.startswith("bit-exact") or bool(report.incomparable)
        if report.float_units and not hasattr(self.run, "inside"):
            # Nothing shows where the float units' freedom ends, so only coarse errors count.
            good = not report.verdict.startswith("mismatch")
        assert good, f"emulation and runtime disagree: {report.verdict}\n{_first(report, calibrated, self.target)}"

    def _refused(self, calibrated: fx.GraphModule) -> None:
        try:
            emulate(self.target)(calibrated)
        except EmulationError:
            return
        raise AssertionError("emulate accepts a target without public arithmetic")

    def _evaluated(self, calibrated: fx.GraphModule, artifact: Artifact | None) -> None:
        # Q/DQ evaluated as written, every op in float32: sums in another order move single codes, not the signal.
        # A float model, whose qparams are in a file of their own, is no simulation.
        if artifact is None or "model.onnx" not in artifact.files or not _quantizes(artifact.files["model.onnx"]):
            return
        from qfunc.lowering.onnxruntime import OnnxRuntime

        wanted = run_evaluated(calibrated, [self.example])
        found = OnnxRuntime(optimise=False, threads=1).run(artifact, [self.example])
        for index, (a, b) in enumerate(zip(wanted, found, strict=True)):
            error = float((a - torch.from_numpy(b)).square().sum())
            assert error <= 0.01 * float(a.square().sum()) + 1e-12, (
                f"output {index} of the artifact is not that of the simulation"
            )


class _Forced(fx.Interpreter):
    """Runs the simulation, each quantizer replaced by the emulation's codes after comparing them."""

    def __init__(self, simulation: fx.GraphModule, partition: Partition, emulation: fx.GraphModule) -> None:
        super().__init__(simulation)
        self.partition, self.emulation = partition, emulation
        self.codes: dict[str, Tensor] = {}
        self.beside = {u.group.output.name: beside(u, partition.output_coding(u.group.output)) for u in partition.units}
        self.integer = {u.group.output.name for u in partition.units if u.integer}
        self.at = {str(n.target): n.name for n in simulation.graph.nodes if n.op == "call_module"}
        self.seat = {self.at[s.path]: s for s in seats(simulation)}

    def check(self, example: Tensor) -> None:
        """Every unit of the simulation within one code of the emulation.

        Raises:
            AssertionError: the first unit that is not.
        """
        with torch.inference_mode():
            Walk(self.emulation, self.codes.__setitem__).run(example, enable_io_processing=False)
            self.run(example, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        seat = self.seat.get(n.name)
        if seat is None:
            return value
        if is_constant(n):
            return value
        coding, fmt = self.partition.at_path[seat.path], seat.module.site.scheme.format
        if isinstance(fmt, Log):
            return value  # encoded and decoded by both alike, and every op between in float
        name = seat.tensor if seat.tensor in self.integer else self._quantizing(seat.tensor, coding)
        if name not in self.codes:
            return value
        emulated = self.codes[name]
        simulated = torch.round(value.double() / coding.scale) + coding.zero_point
        far = (simulated - emulated).abs() > 1 + self.beside.get(seat.tensor, 0.0)
        if bool(far.any()):
            at = tuple(int(i) for i in far.nonzero()[0])
            raise AssertionError(
                f"simulation and emulation differ by more than 1 LSB at {seat.module.site.name!r}{list(at)}: codes "
                f"{simulated[at]:g} and {emulated[at]:g} ({_described(coding)}); {int(far.sum())} of {far.numel()} elements"
            )
        return (emulated - coding.zero_point) * coding.qparams.scale

    def _quantizing(self, tensor: str, coding: Coding) -> str:
        # Readers that want other codes of one tensor have quantizers of their own, named in the order of the graph.
        mine = (coding.scale, coding.zero_point, coding.format.qmin, coding.format.qmax)
        nodes = (n for n in self.emulation.graph.nodes if n.name.startswith(f"{tensor}_codes"))
        return next((n.name for n in nodes if n.args[1:5] == mine), "")


def beside(unit: Unit, output: Coding | None) -> float:
    """How many codes an arithmetic may lie beside the real function, besides one rounding: the reciprocals of pools.

    A pool that multiplies by k / 2^n has the relative error |count * k / 2^n - 1|; the best reciprocal of b bits at
    most 2^-b.  It applies to codes less their zero point.
    """
    arithmetic = unit.kernel.arithmetic if unit.kernel is not None else None
    if not isinstance(arithmetic, AveragePool) or output is None:
        return 0.0
    listed = [abs(h * w * k / 2.0**n - 1) for (h, w), k, n in arithmetic.reciprocals]
    searched = 0.0 if arithmetic.reciprocal_bits is None else 2.0**-arithmetic.reciprocal_bits
    return max([searched, *listed]) * max(output.format.qmax - output.zero_point, output.zero_point - output.format.qmin)


def _quantizes(model: bytes) -> bool:
    import onnx

    proto = onnx.load_from_string(model)
    return bool(proto.functions) or any(n.op_type.endswith("QuantizeLinear") for n in proto.graph.node)


def _rounded(calibrated: fx.GraphModule) -> fx.GraphModule:
    twin = copy.deepcopy(calibrated)
    places = seats(twin)
    powers = {}
    for seat in places:
        if isinstance(seat.module.site.value, Scheme):
            qparams = seat.module.qparams()
            powers[seat.path] = qparams._replace(scale=torch.exp2(torch.ceil(torch.log2(qparams.scale))))
    hold(twin, powers)
    return twin


def _first(report: Report, calibrated: fx.GraphModule, target: Target) -> str:
    if report.disagreements:
        return "\n".join(report.disagreements)
    alone = [r for r in report.of("alone") if r.mismatches and r.exact]
    first = alone[0] if alone else report.first
    if first is None:
        return ""
    partition = Partition(calibrated, target)
    unit = next((u for u in partition.units if first.name in (u.tensor, u.path)), None)
    text = f"The first to differ: {first.name}, {first.mismatches} of {first.elements} elements, by {first.largest_lsb:.3g} LSB"
    if unit is None:
        return text
    codings = [
        (p.name, partition.coding(p, n)) for n in unit.group.nodes for p in n.all_input_nodes if p not in unit.group.nodes
    ]
    codings.append(("output", partition.output_coding(unit.group.output)))
    return "\n".join(
        (text, f"Its unit: {unit.path}, {unit.kernel!r}", *(f"  {n}: {_described(c)}" for n, c in codings if c is not None))
    )


def _described(coding: Coding) -> str:
    scale, zero = coding.qparams.scale.flatten().tolist(), coding.qparams.zero_point.flatten().tolist()
    shown = (
        f"{scale[0]!r}"
        if len(scale) == 1
        else f"[{', '.join(f'{s:.9g}' for s in scale[:4])}{', ...' if len(scale) > 4 else ''}]"
    )
    return f"scale {shown}, zero point {int(zero[0])}, codes {coding.format.qmin}..{coding.format.qmax}"


def _state(model: nn.Module) -> dict[str, Any]:
    graph = {"the graph": str(model.graph)} if isinstance(model, fx.GraphModule) else {}
    modes = {f"{n}.training": m.training for n, m in model.named_modules()}
    return {**graph, **modes, **{k: v.detach().clone() for k, v in model.state_dict().items()}}


def _pairs(a: dict[str, Any], b: dict[str, Any]) -> Sequence[tuple[str, tuple[Any, Any]]]:
    return [(k, (a.get(k), b.get(k))) for k in a.keys() | b.keys()]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    return bool(a == b)


__all__ = ["Trial"]
