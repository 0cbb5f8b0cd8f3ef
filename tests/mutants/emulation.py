"""Breakages of emulate and verify, caught by the real runtime or by hand-made reports."""

from mutants.mutation import Mutation

INTEGER = "tests/conformance/test_ops.py::test_integer_units_are_bit_exact"
NARROW = "tests/conformance/test_narrow_accumulators.py::test_a_right_chip_passes"

EMULATION = (
    Mutation(
        "examples-in-the-first-order", "qfunc.execution.joined_examples:in_model_order",
        "return min([same, *_orders(tensor, like, examples)], key=lambda order: _distance(order, like))",
        "return [same, *_orders(tensor, like, examples)][0]",
        "tests/execution/test_joined_examples.py::test_examples_at_any_place_of_an_axis_come_into_the_order_of_the_model",
    ),
    Mutation(
        "sizes-read-values", "qfunc.graph.data_movement:reads_values",
        'kind_of(reader) != "size" and names',
        "names",
        "tests/frontend/test_equal_captures.py::test_dropouts_and_readers_of_sizes_separate_nothing",
    ),
    Mutation(
        "casts-of-any-dtype-removed", "qfunc.passes.remove_neutral_arithmetic:_is_float32",
        "return bool(tensors) and known >= set(tensors)",
        "return True",
        "tests/frontend/test_equal_captures.py::test_casts_of_other_dtypes_stay", case="torch.float64-a product with an input",
    ),
    Mutation(
        "modules-called-as-functions", "qfunc.emulation.builder:EmulationBuilder.copy_op",
        "return self.graph.create_node(op.op, op.target, args, kwargs,",
        "return self.graph.create_node(op.op, op.target, args, {},",
        "tests/emulation/test_own_ops.py::test_an_op_of_any_form_is_emulated_and_verified", case="a named argument",
    ),
    Mutation(
        "accumulators-never-overflow", "qfunc.arithmetic.overflow:stored_sums",
        "if not bool(sums.at_risk.any()):",
        "if True:",
        NARROW, case="wraps",
    ),
    Mutation(
        "saturation-at-the-end-only", "qfunc.arithmetic.overflow:stored_sums",
        'if isinstance(overflow, SaturatesEachStep) and unit.kind != "mul":',
        "if False:",
        NARROW, case="saturates each step",
    ),
    Mutation(
        "wraps-one-bit-late", "qfunc.numerics.sums.overflow:wrap",
        "half = 2.0 ** (bits - 1)",
        "half = 2.0**bits",
        "tests/numerics/test_narrow_sums.py::test_the_end_wraps_or_saturates",
    ),
    Mutation(
        "the-bias-comes-last", "qfunc.numerics.sums.overflow:_saturating_sum",
        "total = zero if bias is None or bias_last else",
        "total = zero if True else",
        "tests/numerics/test_narrow_sums.py::test_convolutions_clamp_each_step",
    ),
    Mutation(
        "transposed-kernels-are-not-mirrored", "qfunc.numerics.sums.overflow:_ordered",
        'at = positions[::-1] if "mirrored" in order else positions',
        "at = positions",
        "tests/numerics/test_narrow_sums.py::test_convolutions_clamp_each_step",
    ),
    Mutation(
        "ranges-without-the-bias", "qfunc.numerics.sums.overflow:range_of_sums",
        "if bias is None:",
        "if True:",
        "tests/numerics/test_narrow_sums.py::test_the_range_is_that_of_all_inputs",
    ),
    Mutation(
        "all-channels-narrowed", "qfunc.corrections.fit_accumulators:_factor",
        "torch.where(sums.at_risk, largest.clamp(min=1 + 2.0**-8), torch.ones_like(largest))",
        "largest.clamp(min=1 + 2.0**-8)",
        "tests/corrections/test_fit_accumulators.py::test_only_the_channels_at_risk_change",
    ),
    Mutation(
        "dense-weights-by-inputs", "qfunc.arithmetic.integers:integers_of",
        "weight = weight.T if weight.ndim == 2 and w.channel_axis else weight",
        'weight = weight.T if weight.ndim == 2 and unit.kind == "matmul" else weight',
        "tests/emulation/test_dense_linear.py::test_the_sum_runs_over_inputs",
    ),
    Mutation(
        "a-square-is-any-product", "qfunc.graph.selectors:_attributes",
        'plain["square"] = node.args[0] is node.args[1]',
        'plain["square"] = False',
        "tests/lowering/xnnpack/test_squares.py::test_the_zero_point_is_added_before_rounding[litert--1]",
    ),
    Mutation(
        "bounds-are-rounded-without-the-zero-point", "qfunc.arithmetic.unit:UnitSpec._code",
        'before = zero if self.bounds.zero_point == "before" else 0',
        "before = 0",
        "tests/lowering/test_bounds.py::test_each_rounds_the_bound_by_its_own_rule",
    ),
    Mutation(
        "bounds-are-rounded-as-sums-are", "qfunc.specs.arithmetic.kernel:Kernel.rounded_bounds",
        "self.bounds or Bounds(rounding)",
        "Bounds(rounding)",
        "tests/lowering/test_bounds.py::test_each_rounds_the_bound_by_its_own_rule",
    ),
    Mutation(
        "float-bias-loses-the-zero-point", "qfunc.numerics.kernels.requantize:requantize_offset",
        'offset = offset + zero_point if place == "before" else offset',
        "offset = offset",
        "tests/emulation/test_requantize_exact.py::test_a_float_bias_is_added_before_rounding",
    ),
    Mutation(
        "float-bias-always-fused", "qfunc.numerics.kernels.requantize:requantize_offset",
        "integer.fma(acc.float(), m, offset) if fused else acc.to(m.dtype) * m + offset",
        "integer.fma(acc.float(), m, offset)",
        "tests/emulation/test_requantize_exact.py::test_a_float_bias_is_added_before_rounding",
    ),
    Mutation(
        "through-real-without-bias", "qfunc.numerics.kernels.requantize:dequantize_acc",
        "return integer.fma(acc.float(), m, bias) if fused else (acc.to(m.dtype) * m + bias).float()",
        "return acc.float() * m",
        "tests/emulation/test_requantize_exact.py::test_through_real_is_quantize_of_the_real_value",
    ),
    Mutation(
        "fused-sum-left-out", "qfunc.numerics.kernels.requantize:requantize_through_real",
        "value = value if other is None else value + other",
        "value = value",
        "tests/emulation/test_requantize_exact.py::test_through_real_adds_what_is_fused_in_real_units",
    ),
    Mutation(
        "bounds-before-a-fused-sum-left-out", "qfunc.numerics.kernels.requantize:clamp_to_bounds",
        "value = value.clamp(least, most)",
        "pass",
        "tests/emulation/test_requantize_exact.py::test_through_real_adds_what_is_fused_in_real_units",
    ),
    Mutation(
        "activation-behind-a-fused-sum-before-it", "qfunc.arithmetic.unit:UnitSpec.clamps",
        "return ([], every) if at is None else (every[:at], every[at + 1 :])",
        "return ([], every) if at is None else (every[at + 1 :], every[:at])",
        "tests/lowering/openvino_cpu/test_openvino_fusions.py::test_the_addition_is_in_real_units_without_rounding_before_it",
    ),
    Mutation(
        "shift-to-the-right-only", "qfunc.numerics.kernels.requantize:requantize_shift",
        "left = acc.long() << (-shift).clamp(min=0)",
        "left = acc.long()",
        "tests/emulation/test_requantize_exact.py::test_shifts_go_both_ways",
    ),
    Mutation(
        "fixed-point-without-clamp", "qfunc.numerics.kernels.requantize:requantize_fixed",
        "(fixed_point.scale_fixed(acc, m, e, steps) + zero_point).clamp(low, high)",
        "(fixed_point.scale_fixed(acc, m, e, steps) + zero_point)",
        "tests/emulation/test_requantize_exact.py::test_fixed_point_units_saturate",
    ),
    Mutation(
        "shifted-sum-without-zero-points", "qfunc.numerics.kernels.addition:add_shifted",
        "fixed_point.scale_fixed((t - z).long() << left_shift",
        "fixed_point.scale_fixed(t.long() << left_shift",
        "tests/emulation/test_requantize_exact.py::test_shifted_sums_equal_integers",
    ),
    Mutation(
        "mul-without-zero-points", "qfunc.arithmetic.products:products",
        "(a, a.coding.zero_point, b,",
        "(a, 0, b,",
        INTEGER, case="mul constant",
    ),
    Mutation(
        "multiplier-without-the-input-scale", "qfunc.arithmetic.integers:integers_of",
        "scale = x.coding.scales.double() * w.coding.scales.double().flatten()",
        "scale = w.coding.scales.double().flatten()",
        INTEGER, case="conv2d",
    ),
    Mutation(
        "bias-left-out", "qfunc.arithmetic.products:_weighted_sums",
        "(x, zero, held, None if n else bias)",
        "(x, zero, held, None)",
        INTEGER, case="linear rank 2",
    ),
    Mutation(
        "interior-zero-point-after", "qfunc.numerics.kernels.pooling:quantize_interior",
        "(real / s if division else real * (1 / s)) + zero_point, rounding, low)",
        "(real / s if division else real * (1 / s)), rounding, low) + zero_point",
        "tests/emulation/test_requantize_exact.py::test_interior_before_is_not_after",
    ),
    Mutation(
        "float-units-read-unquantized", "qfunc.emulation.writer:_Emulation._real",
        "if encoding is None:",
        "if isinstance(value, Real):",
        "tests/transforms/test_verify_mutants.py::test_a_float_unit_reads_quantized_weights",
    ),
    Mutation(
        "a-float-constant-is-emulated-unquantized", "qfunc.emulation.writer:_Emulation._constant",
        "quantized = quantizer(read_attr(self.network, producer).detach())",
        "quantized = read_attr(self.network, producer).detach()",
        "tests/transforms/test_verify_mutants.py::test_a_float_unit_reads_quantized_weights",
    ),
    # verify
    Mutation(
        "verify-counts-only-large-differences", "qfunc.analysis.verification_report:Tally.add",
        "int((difference != 0).sum())",
        "int((difference > 1).sum())",
        "tests/transforms/test_verify_mutants.py::test_differences_are_counted_exactly",
    ),
    Mutation(
        "verify-nan-equals-anything", "qfunc.analysis.verification_report:Tally.add",
        "torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, difference)",
        "difference.nan_to_num(0.0)",
        "tests/transforms/test_verify_mutants.py::test_differences_are_counted_exactly",
    ),
    Mutation(
        "verify-one-element-a-batch", "qfunc.analysis.verification_report:Tally.add",
        "self.elements += a.numel()",
        "self.elements = a.numel()",
        "tests/transforms/test_verify_mutants.py::test_differences_are_counted_exactly",
    ),
    Mutation(
        "verify-scores-the-emulation-twice", "qfunc.transforms.verification.check:Verification._batch",
        'self.scores.add("simulation", simulated)',
        'self.scores.add("simulation", expected)',
        "tests/transforms/test_scores.py::test_each_score_is_the_mean_over_all_examples_of_its_own_outputs",
    ),
    Mutation(
        "verify-scores-the-last-batch-only", "qfunc.transforms.scores:Scores.means",
        "torch.cat(values).mean()",
        "values[-1].mean()",
        "tests/transforms/test_scores.py::test_each_score_is_the_mean_over_all_examples_of_its_own_outputs",
    ),
    Mutation(
        "verify-ignores-the-partition", "qfunc.transforms.verification.units:wrong_predictions",
        'elif unit.integer != (state == "integer") and not (state == "integer" and _moves_before_quantizer(partition, unit)):',
        "elif False:",
        "tests/conformance/test_partition.py::test_a_wrong_partition_is_reported_though_no_number_differs",
    ),
    Mutation(
        "verify-lets-units-vanish", "qfunc.transforms.verification.units:wrong_predictions",
        "if not is_removable(partition, unit):",
        "if False:",
        "tests/transforms/test_verify_mutants.py::test_a_unit_that_the_runtime_lost_is_a_disagreement",
    ),
    Mutation(
        "neutral-is-any-number", "qfunc.transforms.verification.units:_is_neutral",
        "return isinstance(operand, fx.Node) or bool(operand == neutral)",
        "return True",
        "tests/conformance/test_partition.py::test_the_units_that_a_runtime_may_omit",
    ),
)  # fmt: skip
