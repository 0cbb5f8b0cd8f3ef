"""Breakages of the number formats: small floats, bit patterns, scales, codebooks, logarithms."""

from mutants.mutation import Mutation

PATTERNS = "tests/numerics/test_minifloat.py::test_every_bfloat16_pattern_is_rounded_as_in_ml_dtypes"
MODES = "tests/numerics/test_minifloat_modes.py::test_every_mode_equals_the_rational_equation"
TABLE = "tests/numerics/test_minifloat.py::test_overflow_follows_the_table_of_the_formats"
HELD = "tests/numerics/test_bits.py"
POWERS = "tests/numerics/test_scales.py::test_powers_of_two_are_rounded_exactly"
TWO_LEVELS = "tests/numerics/test_scales.py::test_two_levels_follow_the_formula"
BLOCKS = "tests/numerics/test_blocks.py::test_mx_floats_follow_the_specification"
LEVELS = "tests/numerics/test_codebook.py"
RATIONAL = "tests/numerics/test_logarithmic.py::test_thresholds_lie_where_rational_numbers_put_them"
VENDOR = "tests/numerics/test_logarithmic.py::test_codes_and_values_follow_the_vendors_equation"

FORMATS = (
    # small floats
    Mutation(
        "subnormals-one-exponent-lower", "qfunc.numerics.minifloat:smallest_exponent",
        "return (0 if without_zero(fmt) else 1) -",
        "return 0 -",
        PATTERNS,
    ),
    Mutation(
        "zero-loses-its-sign", "qfunc.numerics.minifloat:nearest",
        "value = torch.copysign(value, wide)",
        "value = value + 0.0",
        MODES,
    ),
    Mutation("fnuz-keeps-minus-zero", "qfunc.numerics.minifloat:_saturate", "else value + 0.0", "else value", PATTERNS),
    Mutation(
        "overflow-is-always-nan", "qfunc.numerics.minifloat:_saturate",
        "math.inf if has_infinity(fmt) else math.nan",
        "math.nan",
        TABLE,
    ),
    Mutation(
        "overflow-before-rounding", "qfunc.numerics.minifloat:_saturate",
        "torch.where(value.abs() > top",
        "torch.where(x.abs() > top",
        TABLE,
    ),
    Mutation(
        "infinity-escapes", "qfunc.numerics.minifloat:_unit",
        "lowest << digits, highest << digits)",
        "min=lowest << digits)",
        PATTERNS,
    ),
    Mutation(
        "float64-by-way-of-float32", "qfunc.numerics.minifloat:_to_compute_dtype",
        "if fits and not (dtype == torch.float32 and x.dtype == torch.float64):",
        "if fits:",
        "tests/numerics/test_minifloat_modes.py::test_float64_is_rounded_once",
    ),
    Mutation(
        "stochastic-by-adding", "qfunc.numerics.rounding:_stochastic",
        "(rest >= 1 - noise).to(x.dtype) - (rest < -noise)",
        "torch.floor(rest + noise) - 0 * (rest < -noise)",
        MODES,
    ),
    # bit patterns
    Mutation(
        "nan-is-infinity", "qfunc.numerics.bits:_nan",
        "return _infinity(fmt) | 1 << fmt.mantissa - 1 if",
        "return _infinity(fmt) if",
        HELD,
    ),
    Mutation(
        "first-nibble-high", "qfunc.numerics.bits:pack_nibbles",
        "last[..., ::2] | last[..., 1::2] << 4",
        "last[..., ::2] << 4 | last[..., 1::2]",
        HELD,
    ),
    Mutation(
        "patterns-not-compared", "qfunc.numerics.bits:to_bits",
        "(decoded == real) & (torch.signbit",
        "(decoded == decoded) & (torch.signbit",
        HELD,
    ),
    # scales
    Mutation(
        "root-of-two-rounds-down", "qfunc.numerics.scales:_power_of_two",
        "fraction >= 0.5**0.5",
        "fraction > 0.5**0.5",
        POWERS,
    ),
    Mutation("power-of-two-doubled", "qfunc.numerics.scales:_power_of_two", "exponent - 1 + up)", "exponent + up)", POWERS),
    Mutation(
        "zeros-hold-one-in-e8m0", "qfunc.numerics.scales:_hardware_scale",
        "if not minifloat.without_zero(fmt):",
        "if True:",
        BLOCKS,
    ),
    Mutation(
        "scale-zero-for-zeros", "qfunc.numerics.scales:_hardware_scale",
        "torch.where(magnitude < torch.finfo(torch.float32).tiny, 1.0, magnitude)",
        "magnitude",
        "tests/numerics/test_qparams.py::test_the_range_of_nothing_and_of_zero_has_scale_one",
    ),
    Mutation(
        "zero-blocks-keep-zero", "qfunc.numerics.scales:inner_scale",
        "torch.where(scale.abs() < TINY, 1.0, scale / outer.double())",
        "(scale / outer.double()).clamp(min=2.0**-100)",
        TWO_LEVELS,
    ),
    Mutation(
        "half-range-is-qmax", "qfunc.numerics.scales:divisor",
        "return (fmt.qmax - fmt.qmin) / 2",
        "return float(fmt.qmax)",
        "tests/numerics/test_scales.py::test_every_divisor_divides_the_extreme",
    ),
    Mutation(
        "positive-extreme-to-qmax", "qfunc.numerics.qparams:_symmetric",
        "torch.where(high > -low, -1.0, 1.0)",
        "torch.where(high > -low, 1.0, 1.0)",
        "tests/numerics/test_scales.py::test_a_signed_scale_sends_the_extreme_to_qmin",
    ),
    # codebooks, logarithms
    Mutation(
        "ties-to-the-level-above", "qfunc.numerics.codebook:_thresholds",
        "((excess == 0) & even)",
        "((excess == 0) & ~even & even)",
        LEVELS,
    ),
    Mutation(
        "middles-in-float32", "qfunc.numerics.codebook:_thresholds",
        "device=like.device).double() / 2",
        "device=like.device) / 2",
        LEVELS,
    ),
    Mutation(
        "threshold-left-out", "qfunc.numerics.logarithmic:encode",
        "(real < ends[0])",
        "(real <= ends[0])",
        "tests/numerics/test_logarithmic.py::test_the_thresholds_themselves_are_quantized",
    ),
    Mutation(
        "negative-zero-code", "qfunc.numerics.logarithmic:encode",
        "magnitude.clamp(min=1).add_",
        "magnitude.clamp(min=0).add_",
        VENDOR,
    ),
    Mutation(
        "no-threshold-above-a-logarithm", "qfunc.numerics.logarithmic:_magnitudes_by_threshold",
        "lower.add_(magnitude >= _lookup(next_threshold, lower))",
        "lower.add_(magnitude > _lookup(next_threshold, lower))",
        RATIONAL,
    ),
    Mutation(
        "thresholds-rounded-down", "qfunc.numerics.logarithmic:_round_up",
        "near.double() < bound, torch.nextafter",
        "near.double() > 2 * bound, torch.nextafter",
        RATIONAL,
    ),
)  # fmt: skip
