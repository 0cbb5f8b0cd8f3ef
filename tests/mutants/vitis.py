"""Breakages of shifts, limits and float simulators, caught by integers and rationals written out in tests."""

from mutants.mutation import Mutation

CODES = "tests/lowering/toolchains/test_vitis.py::test_every_code_is_that_of_shifts_on_integers"

VITIS = (
    Mutation(
        "bias-without-its-own-scale", "qfunc.arithmetic.integers:_aligned_bias",
        "return codes * torch.exp2((shift + fraction_bits).double()), fraction_bits",
        "return codes * torch.exp2((0 * shift + fraction_bits).double()), fraction_bits",
        CODES,
    ),
    Mutation(
        "bits-behind-the-point-not-shifted-away", "qfunc.arithmetic.products:_weighted_sums",
        "integers.scale * 2.0**-n, (-1",
        "integers.scale * 1.0, (-1",
        CODES,
    ),
    Mutation(
        "bias-behind-the-point-rounded-first", "qfunc.numerics.kernels.requantize:add_fractional_bias",
        "return acc.double() * 2.0**bits + bias.double().reshape(-1, *[1] * spatial)",
        "return (acc.double() + (bias / 2**bits).double().round().reshape(-1, *[1] * spatial)) * 2.0**bits",
        "tests/lowering/toolchains/test_vitis.py::test_a_bias_behind_the_point_is_rounded_once",
    ),
    Mutation(
        "weights-keep-their-zero-point", "qfunc.arithmetic.integers:integers_of",
        "weight = (w.constant - w.coding.zero_points.to",
        "weight = (w.constant - 0 * w.coding.zero_points.to",
        "tests/lowering/qlinear/test_onnx_qnn.py",
    ),
    Mutation(
        "terms-of-a-sum-at-the-coarser-scale", "qfunc.arithmetic.shift:Shift._sum",
        "        shift = int(k.max())",
        "        shift = int(k.min())",
        CODES,
    ),
    Mutation(
        "sum-by-shifts-without-zero-points", "qfunc.numerics.kernels.addition:add_by_shifts",
        "terms = [(t - z).long() << s for t, z, s in zip((a, b), zeros, left, strict=True)]",
        "terms = [t.long() << s for t, z, s in zip((a, b), zeros, left, strict=True)]",
        "tests/lowering/toolchains/test_vitis.py::test_sums_by_shifts",
    ),
    Mutation(
        "reciprocals-one-bit-shorter", "qfunc.numerics.kernels.pooling:reciprocal",
        "for n in range(bits + (count - 1).bit_length())]",
        "for n in range(bits - 1 + (count - 1).bit_length())]",
        ("tests/lowering/toolchains/test_vitis.py::test_reciprocals_that_are_not_listed_are_the_nearest", CODES),
    ),
    Mutation(
        "reciprocals-divide", "qfunc.numerics.kernels.pooling:average_codes",
        "mean = total * ratio / math.prod(window) if n is None else",
        "mean = total * ratio / math.prod(window) if n is None or True else",
        CODES,
    ),
    Mutation(
        "pool-without-its-shift", "qfunc.numerics.kernels.pooling:average_codes",
        "else total * k * 2.0**-n * ratio",
        "else total * k * 2.0**-n",
        CODES,
    ),
    Mutation(
        "limits-prefer-finer-scales", "qfunc.placement.shift_limits:_best_move",
        "for d in (-1, 1) for names in groups]",
        "for d in (1, -1) for names in groups]",
        "tests/placement/test_shift_limits.py::test_what_can_be_kept_in_a_network_is_kept",
    ),
    Mutation(
        "limits-ignore-the-scheme", "qfunc.placement.shift_limits:_best_move",
        "inside = [m for m in moves if all(spans[n][0] <= v <= spans[n][1] for n, v in m.items())]",
        "inside = moves",
        (
            "tests/placement/test_shift_limits.py::test_positions_stay_within_their_scheme",
            "tests/placement/test_shift_limits.py::test_one_layer_moves_as_brute_force_does",
        ),
    ),
    Mutation(
        "limits-found-and-not-applied", "qfunc.placement.shift_limits:limit_qparams",
        "            result[path] = qparams[path]._replace(scale=qparams[path].scale * factor)",
        "            result[path] = qparams[path]._replace(scale=qparams[path].scale)",
        "tests/placement/test_shift_limits.py::test_calibration_keeps_the_limits_of_the_dpu",
    ),
    Mutation(
        "float-simulators-with-float-weights", "qfunc.emulation.context:UnitContext.real",
        "        if isinstance(value, Codes) or encoding is None:",
        "        if isinstance(value, Codes) or encoding is not None or encoding is None:",
        "tests/lowering/toolchains/test_float_simulators.py::test_tengine_dequantizes_multiplies_in_float_and_rounds_half_away",
    ),
    Mutation(
        "logarithms-decoded-as-integers", "qfunc.emulation.builder:EmulationBuilder.real",
        "log_values, value.node, encoding.scale, fmt.magnitude_bits, fmt.steps_per_octave, name=",
        "dequantize_codes, value.node, encoding.scale, 128, name=",
        "tests/lowering/toolchains/test_float_simulators.py::test_nnie_decodes_its_codes_and_computes_in_float",
    ),
)  # fmt: skip
