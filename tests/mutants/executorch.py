"""Breakages of what ExecuTorch's file says and of XNNPACK's arithmetic, caught without ExecuTorch."""

from mutants.mutation import Mutation

READ = "tests/lowering/xnnpack/test_pte_nodes.py::test_windows_strides_and_groups_are_those_of_the_layers"
HELD = "tests/lowering/xnnpack/test_executorch.py::test_the_file_holds_the_models_qparams_and_codes"
REFUSED = "tests/lowering/xnnpack/test_executorch.py::test_what_xnnpack_does_not_run_is_refused_at_once"
CURVES = "tests/numerics/test_xnnpack.py::test_curves_in_double_are_rounded_once"
BLOCKS = "tests/lowering/xnnpack/test_executorch_8da4w.py::test_the_file_has_codes_of_four_bits_and_scales_of_bfloat16"
EQUATION = "tests/numerics/test_dynamic_products.py::test_it_is_the_equation"
NINES = "tests/numerics/test_xnnpack.py::test_a_window_is_summed_by_columns_nine_at_a_time"

EXECUTORCH = (
    Mutation(
        "pte-pads-left-for-right", "qfunc.targets.executorch.ops:_padding",
        '"padding_top", "padding_right", "padding_bottom", "padding_left"), padding,',
        '"padding_top", "padding_left", "padding_bottom", "padding_right"), padding[:1] + padding[2:] + padding[1:2],',
        READ,
    ),
    Mutation(
        "pte-adjusts-the-other-axis", "qfunc.targets.executorch.ops:_convolution",
        "adjustment_height=adjustment[0], adjustment_width=adjustment[1],",
        "adjustment_height=adjustment[1], adjustment_width=adjustment[0],",
        READ,
    ),
    Mutation(
        "pte-depthwise-with-one-group", "qfunc.targets.executorch.ops:_depthwise",
        "groups = (channels, 1, outputs // channels)",
        "groups = (1, channels, outputs)",
        READ,
    ),
    Mutation(
        "pte-pools-without-dilation", "qfunc.targets.executorch.ops:_pool",
        'dilation_height=fields["dilationH"]',
        "dilation_height=1",
        READ,
    ),
    Mutation(
        "pte-pads-behind-what-stands-before", "qfunc.targets.executorch.shape:pad",
        "pre_paddings=pairs[:, 0]",
        "pre_paddings=pairs[:, 1]",
        READ,
    ),
    Mutation(
        "pte-slope-of-a-hundredth", "qfunc.targets.executorch.ops:_leaky_relu",
        'negative_slope=fields["alpha"]',
        "negative_slope=0.01",
        READ,
    ),
    Mutation(
        "pte-takes-any-scale", "qfunc.targets.litert.ratios:require_multiplier",
        "if ratio >= 2.0**bits:",
        "if ratio >= 2.0 ** (bits + 1):",
        "tests/lowering/xnnpack/test_pte_nodes.py::test_products_that_xnnpack_does_not_scale_are_refused",
    ),
    Mutation(
        "pte-slopes-of-any-size", "qfunc.targets.executorch.constraints:require_slope",
        "<= 2.0**7 for",
        "<= 2.0**70 for",
        "tests/lowering/xnnpack/test_pte_nodes.py::test_slopes_of_more_than_sixteen_bits_are_refused",
    ),
    Mutation(
        "pte-negative-slopes-of-2-to-the-7", "qfunc.targets.executorch.constraints:require_slope",
        "2.0**-8 - 2.0**7 <=",
        "-(2.0**7) <=",
        "tests/lowering/xnnpack/test_pte_nodes.py::test_slopes_of_more_than_sixteen_bits_are_refused",
    ),
    Mutation(
        "pte-one-scale-for-all-channels", "qfunc.targets.executorch.builder:XnnpackBuilder._value",
        "len(tensor.qparams.scale) > 1 if",
        "len(tensor.qparams.scale) > 9 if",
        HELD,
    ),
    Mutation(
        "pte-zero-points-are-gone", "qfunc.targets.executorch.builder:XnnpackBuilder._value",
        "scale=scale[0], zero_point=zero[0]",
        "scale=scale[0], zero_point=0",
        HELD,
    ),
    Mutation(
        "xnnpack-sums-in-order", "qfunc.targets.executorch.functions:_sum_of_nine", "+ (v[6] + v[7])) +", "+ v[6] + v[7]) +",
        NINES,
    ),
    Mutation(
        "xnnpack-divides-by-the-count", "qfunc.targets.executorch.functions:average_by_nines",
        "return total * (1 / torch",
        "return total / (torch",
        NINES,
    ),
    Mutation(
        "xnnpack-logistic-in-single", "qfunc.targets.executorch.functions:logistic_in_double",
        "x.double().sigmoid().float()",
        "x.sigmoid()",
        CURVES,
    ),
    Mutation(
        "xnnpack-gelu-in-single", "qfunc.targets.executorch.functions:gelu_in_double",
        "F.gelu(x.double(), approximate=approximate).float()",
        "F.gelu(x, approximate=approximate)",
        CURVES,
    ),
    Mutation(
        "xnnpack-gelu-of-another-cube", "qfunc.targets.executorch.reductions:gelu_by_tanh",
        "step.number(0.044715)",
        "step.number(0.04471)",
        "tests/lowering/xnnpack/test_float_nodes.py::test_gelu_by_tanh_is_within_four_roundings",
    ),
    Mutation(
        "xnnpack-flips-one-entry-off", "qfunc.targets.executorch.shape:slices",
        "places = [offsets[axis] + i * stride[axis] for i in range(out.shape[axis])]",
        "places = [max(offsets[axis] + (i + 1) * stride[axis], 0) for i in range(out.shape[axis])]",
        "tests/lowering/xnnpack/test_float_nodes.py::test_a_flip_moves_codes", case="dims0",
    ),
    Mutation(
        "xnnpack-first-axis-is-the-batch", "qfunc.targets.executorch.reductions:_rows",
        "batch = [] if 0 in axes else [0]",
        "batch = [0]",
        "tests/lowering/test_batch_axes.py::test_the_batch_may_be_another_axis", case="executorch-reductions",
    ),
    Mutation(
        "8da4w-scales-of-float32", "qfunc.targets.executorch.decoder_target:executorch_8da4w",
        "format=BFLOAT16, ",
        "",
        BLOCKS,
    ),
    Mutation(
        "8da4w-high-nibble-first", "qfunc.targets.executorch.builder:_halves",
        "shifted[:, ::2] | shifted[:, 1::2] << 4",
        "shifted[:, 1::2] | shifted[:, ::2] << 4",
        BLOCKS,
    ),
    Mutation(
        "run-time-codes-are-cut-off", "qfunc.numerics.sums.dynamic:input_codes",
        "round_by(real, rounding, low)",
        "real.trunc()",
        EQUATION,
    ),
    Mutation(
        "run-time-scales-by-two-reciprocals", "qfunc.numerics.sums.dynamic:multipliers",
        "else n / span",
        "else 1 / (span / n)",
        EQUATION,
    ),
    Mutation(
        "run-time-blocks-from-the-last", "qfunc.numerics.sums.dynamic:block_sums",
        "for b in range(end // width):",
        "for b in reversed(range(end // width)):",
        EQUATION,
    ),
    Mutation(
        "run-time-sums-of-the-weight-as-one", "qfunc.numerics.sums.dynamic:weight_sums",
        "for start in range(0, weight.shape[1], run):",
        "for start in range(0, weight.shape[1], run := block):",
        "tests/numerics/test_dynamic_products.py::test_sums_of_the_weight_are_added_run_by_run",
    ),
    Mutation(
        "run-time-products-without-fma", "qfunc.numerics.sums.dynamic:_add",
        "return fma(acc, m, total) if fused else",
        "return",
        EQUATION,
    ),
    Mutation(
        "run-time-lanes-from-the-neighbours", "qfunc.numerics.sums.dynamic:block_sums",
        'if order == "halves" else',
        'if order != "halves" else',
        EQUATION,
    ),
    Mutation(
        "run-time-zero-points-from-the-low-end", "qfunc.numerics.sums.dynamic:input_zero_points",
        "    if nearest:",
        "    if False:",
        "tests/numerics/test_dynamic_products.py::test_a_row_of_zeros_has_the_highest_zero_point",
    ),
    Mutation(
        "run-time-subnormals-are-kept", "qfunc.numerics.sums.dynamic:flushed",
        "if flushes else x",
        "if False else x",
        "tests/numerics/test_dynamic_products.py::test_subnormal_and_huge_inputs",
    ),
    Mutation(
        "run-time-schemes-of-any-kind", "qfunc.arithmetic.dynamic_product:DynamicProduct.refuses",
        "if inputs[0].run_time != self.input:",
        "if False:",
        "tests/numerics/test_dynamic_products.py::test_a_kernel_takes_the_scheme_that_it_computes",
    ),
)  # fmt: skip
