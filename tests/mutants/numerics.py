"""Breakages of the numerics."""

from mutants.mutation import Mutation

TIES = "tests/numerics/test_rounding.py::test_every_mode_is_exact_on_and_beside_its_ties"
CODE_TIES = "tests/numerics/test_affine.py::test_every_tie_goes_the_right_way"
RANGES = "tests/numerics/test_qparams.py::test_scale_and_zero_point_are_the_exact_ones_rounded_once"
REQUANTIZE = "tests/numerics/test_requantize.py::test_requantize_equals_the_oracle"
SUMS = "tests/numerics/test_requantize.py::test_sums_of_very_unequal_scales_keep_single_roundings"
CONVOLUTIONS = "tests/numerics/test_integer.py::test_convolutions_equal_int64"
ACCUMULATION = "tests/numerics/test_integer.py::test_every_accumulation_path_is_exact"
POOLS = "tests/numerics/test_integer.py::test_average_pools_sum_in_window_order"
SOFTMAX = "tests/numerics/test_tables.py::test_softmax_equals_the_equations"
SHIFTS = "tests/numerics/test_fixed_point.py::test_shifts_round_exactly"
GEMMLOWP = "tests/numerics/test_fixed_point.py::test_fixed_point_requantization_equals_gemmlowp"

NUMERICS = (
    # rounding
    Mutation("half-away-adds-half", "qfunc.numerics.rounding:half_away", "0.5 - torch.finfo(x.dtype).eps / 4", "0.5", TIES),
    Mutation(
        "half-to-zero-tie", "qfunc.numerics.rounding:half_to_zero",
        "(x - whole).abs() > 0.5",
        "(x - whole).abs() >= 0.5",
        TIES,
    ),
    Mutation(
        "half-up-by-adding", "qfunc.numerics.rounding:half_up",
        "return whole + (x - whole >= 0.5).to(x.dtype)",
        "return torch.floor(x + 0.5)",
        TIES,
    ),
    Mutation("half-down-is-half-up", "qfunc.numerics.rounding:half_down", "return -half_up(-x)", "return half_up(x)", TIES),
    Mutation(
        "negative-ceil-swapped", "qfunc.numerics.rounding:negative_ceil_else_half_even",
        "torch.where(x < 0, half_up(x), torch.round(x))",
        "torch.where(x < 0, torch.round(x), half_up(x))",
        TIES,
    ),
    Mutation(
        "index-counted-from-zero", "qfunc.numerics.rounding:round_by",
        "return torch.round(x - low) + low",
        "return torch.round(x)",
        CODE_TIES,
    ),
    # qparams
    Mutation(
        "range-without-zero", "qfunc.numerics.qparams:from_range",
        "low.double().clamp(max=0), high.double()",
        "low.double(), high.double()",
        RANGES,
    ),
    Mutation(
        "zero-point-from-the-top", "qfunc.numerics.qparams:_zero_point",
        "fmt.qmin - low / scale.double()",
        "fmt.qmax - high / scale.double()",
        RANGES,
    ),
    Mutation(
        "minimum-range-ignored", "qfunc.numerics.qparams:from_range",
        "torch.maximum(high, low + scheme.scale.minimum_range)",
        "high",
        RANGES,
    ),
    Mutation(
        "channel-axis-zero", "qfunc.numerics.qparams:block_size",
        "return (*shape[: axis % len(shape)], 1, *shape[axis % len(shape) + 1 :])",
        "return (1, *shape[1:])",
        "tests/numerics/test_granularity.py::test_shapes_of_every_granularity",
    ),
    # fixed point
    Mutation(
        "shift-half-even-odd", "qfunc.numerics.kernels.fixed_point:shift_right",
        "up = tie & (floor % 2 != 0)",
        "up = tie & (floor % 2 == 0)",
        SHIFTS,
    ),
    Mutation(
        "shift-half-away-negative", "qfunc.numerics.kernels.fixed_point:shift_right",
        "up = tie & (value >= 0)",
        "up = tie",
        SHIFTS,
    ),
    Mutation(
        "multiplier-carry-lost", "qfunc.numerics.kernels.fixed_point:fixed_multiplier",
        "bits - exponent.long() - overflow.long()",
        "bits - exponent.long()",
        "tests/numerics/test_fixed_point.py::test_multipliers_follow_the_definition",
    ),
    Mutation(
        "srdhm-nudge-up-only", "qfunc.numerics.kernels.fixed_point:scale_fixed",
        "torch.where(product >= 0, 2**30, 1 - 2**30)",
        "2**30",
        GEMMLOWP,
    ),
    Mutation(
        "no-left-shift", "qfunc.numerics.kernels.fixed_point:scale_fixed",
        "a = acc << (31 + least - e).clamp(min=0)",
        "a = acc",
        "tests/numerics/test_fixed_point.py::test_multipliers_above_one_shift_left_first",
    ),
    Mutation(
        "left-shift-has-room", "qfunc.numerics.kernels.fixed_point:scale_fixed",
        "product = (torch.remainder(a + 2**31, 2**32) - 2**31) * m",
        "product = a * m",
        "tests/numerics/test_fixed_point.py::test_an_int32_that_is_shifted_to_the_left_wraps_around",
    ),
    # requantize, fused multiply-add, sums
    Mutation(
        "requantize-before-is-after", "qfunc.numerics.kernels.integer:requantize",
        "return round_by(value + zero_point, rounding, low).clamp(low, high)",
        "return (round_by(value, rounding, low) + zero_point).clamp(low, high)",
        REQUANTIZE,
    ),
    Mutation(
        "requantize-clamp-without-zero-point", "qfunc.numerics.kernels.integer:requantize",
        "value.clamp(low - zero_point, high - zero_point)",
        "value.clamp(low, high)",
        REQUANTIZE,
    ),
    Mutation(
        "fma-rounds-twice", "qfunc.numerics.kernels.integer:fma",
        "return torch.where((error != 0) & even, odd, total).float()",
        "return total.float()",
        "tests/numerics/test_fixed_point.py::test_fma_where_float64_alone_rounds_twice",
    ),
    Mutation(
        "sum-offset-unfused", "qfunc.numerics.kernels.addition:add_codes",
        "- fma(r_a, z_a, r_b * z_b)",
        "- (r_a * z_a + r_b * z_b)",
        "tests/numerics/test_requantize_mutants.py::test_the_offset_of_a_sum_is_fused",
    ),
    Mutation(
        "sum-never-swaps", "qfunc.numerics.kernels.addition:_scalar_along_last",
        "return n_a == 1 and n_b != 1",
        "return False",
        "tests/numerics/test_requantize.py::test_sum_swaps_an_operand_that_is_constant_along_the_last_axis",
    ),
    Mutation(
        "sum-always-in-float64", "qfunc.numerics.kernels.addition:_float64_is_exact",
        "return 2.0**17 * (r_a + r_b + 1) < 2.0**53 * last",
        "return True",
        SUMS,
    ),
    Mutation(
        "codes-zero-point-before-rounding", "qfunc.numerics.kernels.integer:quantize_codes",
        "return (round_by(real, rounding, low - zero_point) + zero_point).clamp(low, high)",
        "return round_by(real + zero_point, rounding, low).clamp(low, high)",
        "tests/numerics/test_requantize.py::test_quantize_codes_is_quantize",
    ),
    # accumulators
    Mutation(
        "conv-pads-with-code-zero", "qfunc.numerics.kernels.accumulators:conv_codes",
        "acc = conv(x, weight, None, stride, padding, dilation, groups)",
        "acc = conv(x + zero_point, weight, None, stride, padding, dilation, groups) "
        "- zero_point * weight.flatten(1).sum(1).reshape(-1, *[1] * (weight.ndim - 2))",
        CONVOLUTIONS,
    ),
    Mutation(
        "conv-runs-in-float32", "qfunc.numerics.kernels.accumulators:conv_codes",
        "padding, dilation, groups).double()",
        "padding, dilation, groups)",
        ACCUMULATION,
    ),
    Mutation(
        "chunks-forget-the-next-channel", "qfunc.numerics.kernels.accumulators:exact_chunks",
        "running = per_channel[:, i].clone()",
        "running = torch.zeros_like(running)",
        "tests/numerics/test_integer.py::test_no_run_can_reach_two_to_the_24",
    ),
    Mutation(
        "chunks-of-25-bits", "qfunc.numerics.kernels.accumulators:EXACT_FLOAT32",
        "EXACT_FLOAT32 = 2**24",
        "EXACT_FLOAT32 = 2**25",
        "tests/numerics/test_integer.py::test_the_bound_is_sharp",
    ),
    Mutation(
        "matmul-always-in-float32", "qfunc.numerics.kernels.accumulators:matmul_codes",
        "return a @ b if a.shape[-1] * largest < EXACT_FLOAT32 else a.double() @ b.double()",
        "return a @ b",
        "tests/numerics/test_integer.py::test_products_of_activations_equal_int64",
    ),
    # pools and tables
    Mutation(
        "average-ignores-include-pad", "qfunc.numerics.kernels.integer:average_pool_real",
        "(float(math.prod(kernel)) if include_pad else count)",
        "count",
        POOLS,
    ),
    Mutation(
        "ceil-mode-keeps-an-empty-window", "qfunc.numerics.kernels.integer:_output_size",
        "(out - 1) * stride >= size + pad",
        "(out - 1) * stride > size + pad",
        "tests/numerics/test_tables_mutants.py::test_ceil_mode_drops_windows_that_start_behind_the_input",
    ),
    Mutation(
        "global-average-divides-twice", "qfunc.numerics.kernels.integer:global_average_codes",
        "torch.tensor(scale_in) / (torch.tensor(scale) * count)",
        "torch.tensor(scale_in) / torch.tensor(scale) / count",
        "tests/numerics/test_tables_mutants.py::test_the_global_average_rounds_scale_times_count_first",
    ),
    Mutation("softmax-without-room", "qfunc.numerics.kernels.integer:softmax_codes",
        "max(0.0, log_limit - 5.0)", "max(0.0, log_limit)", SOFTMAX),
    Mutation(
        "softmax-without-its-maximum", "qfunc.numerics.kernels.integer:softmax_codes",
        "(codes.device)[terms - terms.amax(0) + 255]",
        "(codes.device)[terms]",
        SOFTMAX,
    ),
    Mutation(
        "softmax-exact-reciprocal", "qfunc.numerics.kernels.integer:softmax_codes",
        "torch.floor(1 / torch.tensor(scale, dtype=torch.float32))",
        "(1 / torch.tensor(scale, dtype=torch.float32))",
        SOFTMAX,
    ),
    Mutation(
        "logistic-unfused", "qfunc.numerics.kernels.integer:horner",
        "value = fma(value, x, torch.tensor(c, dtype=torch.float32))",
        "value = value * x + c",
        "tests/numerics/test_tables.py::test_logistic_is_the_fused_polynomial",
    ),
)  # fmt: skip
