"""Compare a model's artifact in the real runtime with its emulation, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.analysis.gain import Gain
from qfunc.analysis.report_format import name_of
from qfunc.analysis.verification_report import Report
from qfunc.emulation.builder import codes_names
from qfunc.emulation.float_units import Bounded, FloatUnits, Known
from qfunc.emulation.teacher_forcing import TeacherForced, code_nodes, same
from qfunc.emulation.writer import build_emulation
from qfunc.errors import EmulationError, VerifyError
from qfunc.execution.batches import tensors_of
from qfunc.execution.evaluate import evaluated_value, run_in_evaluation_mode
from qfunc.execution.joined_examples import in_model_order
from qfunc.graph.arguments import flatten, with_fixed_arguments
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.lowering.code_outputs import ModelWithCodes
from qfunc.lowering.runner_support import run_error
from qfunc.specs import Target
from qfunc.specs.protocols import (
    ExecutedView,
    FlippingRunner,
    InspectableRunner,
    RealView,
    ReorderingRunner,
    Runner,
)
from qfunc.transforms.deploy import deployment, write_artifact
from qfunc.transforms.scores import Scores
from qfunc.transforms.validate import describe, require_public
from qfunc.transforms.verification.gains import Gains
from qfunc.transforms.verification.outputs import encoding_of_output, lsb_of_output, range_lsb
from qfunc.transforms.verification.processors import incomparable
from qfunc.transforms.verification.tallies import Tallies
from qfunc.transforms.verification.units import (
    compared_exactly,
    results,
    summed_products,
    units_not_compared,
    wrong_executions,
    wrong_predictions,
)
from qfunc.transforms.verification.view import as_numbers, require_shape, shown_by, view_of

NUMBERS = "numbers, which have codes"
"""What `verify` wants before quantizers: a network that is NaN as codes cannot be compared."""


class Verification:
    """A calibrated model, its artifact in a runner and its emulation, compared batch by batch."""

    def __init__(
        self, model: fx.GraphModule, target: Target, runner: Any, scores: Scores | None = None,
        gains: Callable[..., Gains] | None = None,
    ) -> None:  # fmt: skip
        self.target, self.runner, self.scores = target, runner, scores
        deployed = deployment(model, target)
        self.gains = None if gains is None else gains(model, deployed)
        self.quantized, self.model = model, deployed.model
        self.shapes = [tuple(i.shape) for i in deployed.inputs]
        self.artifact, self.partition = write_artifact(deployed), deployed.partition
        reordering: Any = runner  # checkers narrow the name that isinstance tests
        self.unlike: tuple[str, ...] = reordering.unlike() if isinstance(reordering, ReorderingRunner) else ()
        self.reason = _unknown(target)
        self.emulation = None if self.reason else build_emulation(self.partition)
        can_inspect = isinstance(runner, InspectableRunner) and self.emulation is not None
        self.inside = view_of(runner, self.artifact) if can_inspect else None
        shown = frozenset[str]() if self.inside is None else frozenset(self.inside.tensors)
        self.encodings = {} if self.emulation is None else code_nodes(self.partition, self.emulation, shown)
        self.joined = isinstance(self.inside, ModelWithCodes) and self.inside.joined
        self.reals_joined = self.joined or isinstance(self.inside, RealView)
        self.calls = 0
        self.reals = self._reals()
        self.unknown_units = [u for u in self.partition.float_units if u.kernel is None or u.kind in self.unlike]
        self.nodes_of_codes = {codes: name for name, codes in codes_names(self.partition.network.graph).items()}
        by_node = {self._node_name(name): encoding for name, (_, encoding) in self.encodings.items()}
        flips = isinstance(runner, FlippingRunner) and bool(runner.flips)
        self.float_units = FloatUnits(self.partition, self.unknown_units, by_node, flips)
        self.shown_reals = self._shown_reals()
        self.tallies = Tallies(self.partition, self.unlike, self.shown_reals)
        self.products: dict[str, int] | None = None

    def _node_name(self, name: str) -> str:
        # The node of the float network for a node of the emulation that has its codes.
        return self.nodes_of_codes.get(name, name)

    @property
    def _real_names(self) -> frozenset[str]:
        return self.inside.reals if isinstance(self.inside, RealView) else frozenset()

    def _reals(self) -> dict[str, str]:
        # Return path by node of the emulation, for every real tensor of an integer unit that the artifact shows.
        if self.emulation is None or self.inside is None:
            return {}
        shown, names = self._real_names, {n.name for n in self.emulation.graph.nodes}
        computed = [n for u in self.partition.units if u.integer for n in results(u)]
        real = [n for n in computed if self.partition.output_encoding(n) is None and n.name in names]
        return {n.name: tensor for n in real if (tensor := self.partition.names[n]) in shown}

    def _shown_reals(self) -> dict[str, str]:
        # The runtime's name of each real result of a unit that it shows, by node.
        found, names = {}, self._real_names
        for unit in self.partition.units:
            node = unit.group.output
            if unit.tensor in names and self.partition.output_encoding(node) is None:
                found[node.name] = unit.tensor
        return found

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Compare one batch, or one call of a submodule; return the value of the simulation."""
        leaves = [leaf.detach() for leaf in tensors_of(arguments)]
        where = f"verify, batch {number}"
        value = evaluated_value(self.model, leaves, where)
        if self.products is None and self.emulation is not None:
            self.products = summed_products(self.partition, arguments)
        simulated = tensors_of(value)
        outputs = self._batch(leaves, simulated, where)
        if self.gains is not None:
            self.gains.add(arguments, leaves, outputs, where)
        self.calls += 1
        return self.model.graph.process_outputs(value)

    def _batch(self, leaves: list[Tensor], simulated: list[Tensor], where: str) -> list[Tensor]:
        outputs, codes = self.run(leaves, where)
        runtime = self.in_order(outputs, simulated, leaves)
        if [tuple(v.shape) for v in runtime] != [tuple(v.shape) for v in simulated]:
            found, wanted = [list(v.shape) for v in runtime], [list(v.shape) for v in simulated]
            do = "Return the outputs in the model's order."
            raise VerifyError(where="verify, outputs of the runtime", found=str(found), wanted=str(wanted), do=do)
        expected = simulated if self.emulation is None else self._emulate(leaves, codes, runtime, where)
        for index, (emulated, actual, value) in enumerate(zip(expected, runtime, simulated, strict=True)):
            if encoding_of_output(self.partition, index) is not None:
                _require_numbers(emulated, f"{where}, output {index}")
            lsb = lsb_of_output(self.partition, index, emulated)
            self.tallies.of(f"output {index}", "output").add(emulated, actual, lsb)
            self.tallies.of(f"simulation {index}", "simulation").add(value, emulated, lsb)
        if self.scores is not None:
            self.scores.add("float", run_in_evaluation_mode(self.partition.network, leaves))
            self.scores.add("simulation", simulated)
            if self.emulation is not None:
                self.scores.add("emulation", expected)
            self.scores.add("runtime", runtime)
        return runtime

    def in_order(self, outputs: list[Any], like: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
        """Return the runtime's outputs as tensors, in the model's layout."""
        runtime = [as_numbers(v, f"verify, output {i} of the runtime") for i, v in enumerate(outputs)]
        if not isinstance(self.runner, Runner) or len(runtime) != len(like):
            return runtime
        examples, joined = _examples(leaves), self.reals_joined
        return [in_model_order(v, value, examples, joined=joined) for v, value in zip(runtime, like, strict=True)]

    def run(self, leaves: list[Tensor], where: str) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the runtime, the inner tensors that it shows)."""
        if not isinstance(self.runner, Runner):  # a function of the user
            return _require_list(self.runner(self.artifact, leaves)), {}
        try:
            run = self.inside.run(leaves) if self.inside is not None else (self.runner.run(self.artifact, leaves), {})
        except VerifyError:
            raise
        except Exception as e:
            sizes = [tuple(v.shape) for v in leaves]
            raise run_error(e, self.runner, sizes, self.shapes, where, view=self.inside is not None) from e
        if self.inside is None:
            return _require_list(run[0]), {}
        names = [*(f"{path}.codes" for path, _ in self.encodings.values()), *self.reals.values()]
        outputs, shown = shown_by(self.runner, run, names)
        return _require_list(outputs), shown

    def forced(self, leaves: list[Tensor], shown: dict[str, Any]) -> TeacherForced:
        """Return the emulation in which each unit has the inputs that it has in the runtime, as far as these are shown."""
        assert self.emulation is not None
        unknown = {u.group.output.name for u in self.unknown_units}
        examples = _examples(leaves)
        return TeacherForced(self.emulation, self.encodings, self.shown_reals, unknown, shown, examples, self.joined)

    def _emulate(self, leaves: list[Tensor], codes: dict[str, Any], runtime: list[Tensor], where: str) -> list[Tensor]:
        assert self.emulation is not None
        # Also run each unit on the inputs that it has in the runtime, to find the units that cause a difference.
        examples, forced = _examples(leaves), self.forced(leaves, codes)
        unknown_codes: list[tuple[str, Tensor]] = []
        misshapen: list[tuple[str, Tensor, Tensor]] = []

        def compare(name: str, value: Any) -> None:
            if name in self.encodings:
                path, _ = self.encodings[name]
                if bool(value.isnan().any()):
                    unknown_codes.append((path, value))
                actual = in_model_order(codes[f"{path}.codes"], value, examples, joined=self.joined)
                if actual.shape != value.shape:
                    misshapen.append((path, actual, value))  # torch.fx would rewrite an error that is raised here
                    return
                self.tallies.of(path, "codes").add(value, actual, 1.0)
            if name in self.reals:
                path = self.reals[name]
                actual = in_model_order(codes[path], value, examples, joined=True)
                if actual.shape == value.shape:
                    self.tallies.of(path, "real").add(value, actual, range_lsb(value))

        with torch.inference_mode():
            arguments = with_fixed_arguments(self.emulation, leaves)
            interpreter = ObservingInterpreter(self.emulation, compare, {*self.encodings, *self.reals})
            outputs = _tensors(interpreter.run(*arguments, enable_io_processing=False))
            for path, actual, value in misshapen[:1]:
                require_shape(actual, value, self.runner, f"{path}.codes")
            for path, value in unknown_codes[:1]:
                _require_numbers(value, f"{where}, tensor {path!r}")
            differs = self.inside is not None and (
                self.tallies.any_mismatch("codes", "real") or any(not same(a, b) for a, b in zip(outputs, runtime, strict=True))
            )
            if differs or self.unknown_units:
                forced_outputs = _tensors(forced.run(*arguments, enable_io_processing=False))
                shown = {self._node_name(n): v for n, v in forced.codes_of.items()}
                known = Known(shown, forced.reals_of, forced.values, runtime)
                bounds: dict[tuple[str, bool], Bounded] = {}
                for bounded in self.float_units.compare(leaves, known):
                    bounds[bounded.name, bounded.sums] = bounded
                    if not bounded.sums:
                        self.tallies.of(bounded.name, "float").add_bounded(bounded.deviation, bounded.bound)
                for path, emulated, actual in forced.pairs if differs else ():
                    self.tallies.add_alone(path, emulated, actual, 1.0, self.calls, bounds)
                for node, emulated, actual in forced.real_pairs if differs else ():
                    if node in self.reals:
                        self.tallies.add_alone(self.reals[node], emulated, actual, range_lsb(emulated), self.calls, bounds)
                for index, (emulated, actual) in enumerate(zip(forced_outputs if differs else (), runtime, strict=False)):
                    # A runtime that shows other codes than it computes without showing them has the output of the emulation.
                    emulated = torch.where(outputs[index] == actual, actual.to(emulated.dtype), emulated)
                    lsb = lsb_of_output(self.partition, index, emulated)
                    self.tallies.add_alone(f"output {index}", emulated, actual, lsb, self.calls, bounds)
        return outputs

    def report(self) -> Report:
        floats = () if self.reason else tuple((u.path, u.reason) for u in self.unknown_units)
        compared = self.tallies.names("codes", "real")
        shown = None if self.inside is None else frozenset(self.inside.tensors)
        skipped = () if self.reason else tuple(units_not_compared(self.partition, compared, shown))
        in_float = {u.tensor for u in self.partition.units if not u.integer}
        exact = compared_exactly(self.partition, compared, {u.tensor for u in self.unknown_units})
        products = self.products or {}
        made = self.runner, self.artifact, self.quantized, self.target
        elsewhere = "" if self.emulation is None else incomparable(*made, self.emulation)
        return Report(
            target=self.target.name,
            runtime=repr(self.runner) if isinstance(self.runner, Runner) else name_of(self.runner, "runtime"),
            predicted=0 if self.reason else sum(u.integer for u in self.partition.units),
            rows=tuple(self.tallies.rows()),
            disagreements=() if self.inside is None else self._disagreements(self.inside),
            float_units=floats,
            unknown=self.reason,
            incomparable=elsewhere,
            scores=() if self.scores is None else self.scores.means,
            skipped=skipped,
            unbounded=tuple(self.float_units.unbounded.items()),
            rounded=self.tallies.rounded,
            products=sum(products.values()),
            compared_products=sum(n for path, n in products.items() if path in exact),
            units_shown=self._units_hidden(),
            integer_products=sum(n for path, n in products.items() if path not in in_float),
            gain=Gain() if self.gains is None else self.gains.measured(self.runner, self.artifact, self.target),
            bounded_products=sum(n for path, n in products.items() if path in self.float_units.bounded - exact),
        )

    def _units_hidden(self) -> str:
        if self.inside is None:
            return "the runtime shows its outputs only"
        if self.inside.units is not None or _executed(self.inside) is not None:
            return ""
        return "the runtime does not show which ops it executes"

    def _disagreements(self, inside: Any) -> tuple[str, ...]:
        found: list[str] = []
        if inside.units is not None:
            found += wrong_predictions(self.partition, inside.units, {path for path, _ in self.encodings.values()})
        found += wrong_executions(self.partition, _executed(inside) or {})
        return (*found, inside.difference) if inside.difference else tuple(found)


def _executed(inside: Any) -> Mapping[str, str] | None:
    return inside.executed if isinstance(inside, ExecutedView) else None


def _require_list(outputs: Any) -> list[Any]:
    if isinstance(outputs, tuple | list):
        return list(outputs)
    do = "Return a list of arrays, in the model's order."
    raise VerifyError(where="verify, outputs of the runtime", found=describe(outputs), wanted="a list of outputs", do=do)


def _tensors(value: Any) -> list[Tensor]:
    return [v for v in flatten(value) if isinstance(v, Tensor)]


def _require_numbers(value: Tensor, where: str) -> None:
    # What NaN becomes is a matter of the processor's instructions.
    if bool((nan := value.isnan()).any()):
        do = "Keep the inputs of the op before it in float by edit.skip, if they are 0 as codes only, as in 0 / 0."
        found = f"NaN before the quantizer in {int(nan.sum()):,} of {nan.numel():,} elements"
        raise VerifyError(where=where, found=found, wanted=NUMBERS, do=do)


def _examples(leaves: list[Tensor]) -> int:
    return max(len(leaves[0]), 1) if leaves and leaves[0].ndim else 1


def _unknown(target: Target) -> str:
    try:
        require_public(target)
    except EmulationError as e:
        return e.found
    return ""
