"""Breakages of the reports, of bypass, of calibration through quantizers, and of the command line."""

from mutants.mutation import Mutation

MIXED = "tests/transforms/test_mixed_precision.py"
FIGURES = "tests/transforms/test_compare.py::test_the_figures_are_those_of_the_formulas[residual-False]"

REPORTS = (
    Mutation(
        "sqnr-in-nepers", "qfunc.analysis.metrics:Agreement.sqnr",
        "10 * math.log10(self.signal / self.noise)",
        "20 * math.log10(self.signal / self.noise)",
        FIGURES,
    ),
    Mutation(
        "noise-of-the-last-batch", "qfunc.analysis.metrics:Sums.join",
        "self.totals[:4] + totals[:4]",
        "totals[:4]",
        FIGURES,
    ),
    Mutation(
        "infinities-are-noise", "qfunc.analysis.metrics:Sums.add",
        "equal_infinities = (x == x_hat) & x.isinf()",
        "equal_infinities = x.isnan() & x.isinf()",
        "tests/transforms/test_compare.py::test_values_that_are_not_finite",
    ),
    Mutation(
        "alone-with-all-before-it", "qfunc.transforms.compare:_Row.add",
        "pair.simulated if is_first else self.module(pair.real)",
        "pair.simulated",
        FIGURES,
    ),
    Mutation(
        "weights-counted-in-every-batch", "qfunc.transforms.compare:_Row.add",
        "if self.constant and self.sums.elements:",
        "if False:",
        "tests/transforms/test_compare.py::test_weights_are_counted_once_and_the_rows_go_by_depth",
    ),
    Mutation(
        "float-side-quantized", "qfunc.analysis.lockstep:Lockstep._pair",
        "return Pair(real, self.ops.call(node, lambda n: env[n].simulated))",
        "return Pair(*[self.ops.call(node, lambda n: env[n].simulated)] * 2)",
        FIGURES,
    ),
    Mutation(
        "values-kept-to-the-end", "qfunc.analysis.lockstep:Lockstep.run",
        "                del env[value]",
        "                self.__dict__.setdefault('kept', []).append(env[value])",
        "tests/transforms/test_compare.py::test_memory_does_not_grow_with_the_batches",
    ),
    Mutation(
        "clipped-at-the-outermost-code", "qfunc.analysis.histogram:Counter.add",
        "clipped = unclipped.numel() - int(unclipped.sum())",
        "clipped = int((value < self.low).sum() + (value > self.high).sum())",
        "tests/transforms/test_compare.py::test_the_histogram_counts_against_the_clipping_range",
    ),
    Mutation(
        "sensitivity-runs-everything", "qfunc.analysis.replay:Replays._cone",
        "if any(n in reached for n in node.all_input_nodes):",
        "if True:",
        "tests/transforms/test_sensitivity.py::test_only_the_ops_that_a_site_reaches_run_again",
    ),
    Mutation(
        "sensitivity-accumulates", "qfunc.analysis.replay:Replays.add",
        "values = ChainMap({node: replaced(given)}, real)",
        "real[node] = replaced(given); values = ChainMap({node: real[node]}, real)",
        "tests/transforms/test_sensitivity.py::test_each_loss_is_that_of_a_model_with_this_site_only[residual-False]",
    ),
    Mutation(
        "bypassed-weight-keeps-its-bias", "qfunc.transforms.bypass:remove_quantizers",
        "if paths & set(factors.values())}",
        "if not paths}",
        "tests/transforms/test_bypass.py::test_roles",
    ),
    Mutation(
        "bypass-of-any-role", "qfunc.transforms.bypass:_select",
        "return role in roles and any(",
        "return any(",
        "tests/transforms/test_bypass.py::test_roles",
    ),
    Mutation(
        "through-quantizers-without-qparams", "qfunc.graph.float_network:without_quantizers",
        "if not (keep_ready and module.ready) if quantizer else",
        "if True if quantizer else",
        "tests/transforms/test_calibration_source.py::test_the_default_is_the_float_network",
    ),
    Mutation(
        "weights-drawn-of-no-site", "qfunc.transforms.explain:_histogram",
        'node.op != "get_attr" or module.site.slot != "weight"',
        'node.op != "get_attr" or module.site.slot == "weight"',
        "tests/transforms/test_explain.py::test_the_page_draws_each_weight_over_its_clipping_range",
    ),
    Mutation(
        "skipped-op-without-its-rule", "qfunc.transforms.explain:_reason",
        "if isinstance(getattr(rule, slot), KeepFloat):",
        "if not isinstance(getattr(rule, slot), KeepFloat):",
        "tests/transforms/test_explain.py::test_a_skipped_op_shows_as_float",
    ),
    Mutation(
        "verify-reads-no-scales", "qfunc.proof.saved_check:_qparams",
        "                    wrong += [] if equal else [tensor]",
        "                    wrong += []",
        "tests/test_command_line.py::test_verify_sees_what_is_broken",
    ),
    Mutation(
        "a-budget-that-binds-nothing", "qfunc.analysis.least_loss:minimize",
        " & (sums.costs + rests.cheapest[number] <= budget)",
        "",
        MIXED,
    ),
    Mutation(
        "curvature-of-all-outputs-at-once", "qfunc.analysis.bit_sensitivity:_Curvature.losses",
        "mean = self.traces[w.node] / max(w.elements * self.outputs, 1)",
        "mean = self.traces[w.node] / max(w.elements, 1)",
        "tests/transforms/test_mixed_precision.py::test_signs_average_to_the_trace",
    ),
    Mutation(
        "inputs-behind-a-flatten-are-float", "qfunc.analysis.operations.quantized_weights:_input_bits",
        "while operand in passing and",
        "while False and",
        "tests/transforms/test_mixed_precision.py::test_bit_operations_are_counted",
    ),
    Mutation(
        "runtimes-execute-as-predicted", "qfunc.transforms.verification.units:wrong_executions",
        'unit.integer == (state == "integer")',
        "True",
        "tests/lowering/test_runtime_units.py::test_operators_that_litert_computes_in_float", case="litert",
    ),
    Mutation(
        "affine-weights-on-integers", "qfunc.targets.openvino.target:openvino",
        'Op("conv") & ~SYMMETRIC, BY_RANGE, integer_if=(NoZeroPoint(1),), formats=BYTES',
        'Op("conv") & ~SYMMETRIC, BY_RANGE, formats=BYTES',
        "tests/lowering/test_runtime_units.py::test_openvino_computes_affine_weights_in_float",
    ),
)  # fmt: skip
