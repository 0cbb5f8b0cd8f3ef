"""Breakages of curves and means in fixed point, caught by Python's integers."""

from mutants.mutation import Mutation

FIXED_CURVES = (
    Mutation(
        "mean-keeps-the-zero-point", "qfunc.numerics.kernels.activations:mean_fixed",
        "total = (codes - zero_in).double().sum(list(dims), keepdim=keepdim)",
        "total = codes.double().sum(list(dims), keepdim=keepdim)",
        "tests/numerics/test_activations.py::test_the_multiplier_of_a_mean_is_divided_by_the_count",
    ),
    Mutation(
        "hardswish-divides-doubles", "qfunc.numerics.kernels.activations:hard_swish16",
        "_multiplier16(float(fine / s))",
        "_multiplier16(float(fine) / float(s))",
        "tests/numerics/test_activations.py::test_hard_swish_is_the_integers_of_its_source",
    ),
    Mutation(
        "hardswish-takes-a-ratio-of-128", "qfunc.lowering.nhwc.elementwise:hard_swish",
        "/ np.float32(limit) >= np.float32",
        "/ np.float32(limit) > np.float32",
        "tests/lowering/tflite/test_litert_extremes.py::test_hard_swish_takes_ratios_below_128",
    ),
    Mutation(
        "average-counts-what-is-padded", "qfunc.numerics.kernels.activations:average_inside",
        "if pads else inside",
        "if True else inside",
        "tests/numerics/test_activations.py::test_codes_are_averaged_with_their_zero_point",
    ),
    Mutation(
        "bilinear-always-half-away", "qfunc.numerics.kernels.resize:bilinear_codes",
        'rounding = "half_away" if positions == "integer" else "half_up"',
        'rounding = "half_away"',
        "tests/numerics/test_activations.py::test_integer_weights_of_neighbours",
    ),
    Mutation(
        "softmax-cuts-its-shares-off", "qfunc.numerics.kernels.fixed_rows:_shares",
        'probability = shift_right(_high(reciprocal, e), over + 23, "half_away")',
        'probability = shift_right(_high(reciprocal, e), over + 23, "floor")',
        "tests/numerics/test_fixed_softmax.py::test_softmax_is_the_integers_of_its_source",
    ),
    Mutation(
        "what-is-left-over-rounds-as-the-runs", "qfunc.numerics.kernels.vector:quantize_lanes",
        "last = int32_codes(round_by(flat[whole:].double() / scale, rest, low - zero_point), zero_point, low, high, saturates)",
        "last = quantize_int32(flat[whole:], scale, zero_point, low, high, rounding, division)",
        "tests/numerics/test_activations.py::test_what_fills_no_run_is_rounded_from_doubles",
    ),
)  # fmt: skip
