"""Breakages of quantize, dequantize, fake quantize and its gradient."""

from mutants.mutation import Mutation

CODE_TIES = "tests/numerics/test_affine.py::test_every_tie_goes_the_right_way"
GRADIENT = "tests/numerics/test_gradients.py::test_gradient_is_one_inside_and_zero_outside"

FAKE_QUANTIZE = (
    Mutation(
        "zero-point-before-rounding", "qfunc.numerics.affine:_scaled",
        "return _round(real, scheme, low - zero) + zero",
        "return _round(real + zero, scheme, low)",
        CODE_TIES,
    ),
    Mutation(
        "clamp-one-code-short", "qfunc.numerics.affine:_codes",
        "return real.clamp(fmt.qmin, fmt.qmax)",
        "return real.clamp(fmt.qmin, fmt.qmax - 1)",
        CODE_TIES,
    ),
    Mutation(
        "reciprocal-for-division", "qfunc.numerics.affine:_scaled",
        "real = x / scale if scheme.division else x * (1 / scale)",
        "real = x * (1 / scale)",
        "tests/numerics/test_affine_mutants.py::test_a_division_rounds_once",
    ),
    Mutation(
        "division-for-reciprocal", "qfunc.numerics.affine:_scaled",
        "real = x / scale if scheme.division else x * (1 / scale)",
        "real = x / scale",
        "tests/numerics/test_affine_mutants.py::test_a_reciprocal_rounds_twice",
    ),
    Mutation(
        "dequantize-distributes", "qfunc.numerics.affine:_values",
        "(codes - params.zero_point) * scale",
        "codes * scale - params.zero_point * scale",
        "tests/numerics/test_affine.py::test_dequantize_is_the_exact_product_rounded_once",
    ),
    Mutation(
        "gradient-below-the-range", "qfunc.numerics.affine:_gradient_mask",
        "limited = unclamped.clamp(*_ends(scheme))",
        "limited = unclamped.clamp(max=_ends(scheme)[1])",
        GRADIENT,
    ),
    Mutation(
        "no-gradient-at-the-end", "qfunc.numerics.affine:_ends",
        "return fmt.qmin, fmt.qmax",
        "return fmt.qmin + 1, fmt.qmax",
        GRADIENT,
    ),
    Mutation(
        "codes-overwrite-what-the-mask-reads", "qfunc.numerics.affine:_codes",
        "real.clamp(fmt.qmin, fmt.qmax)",
        "real.clamp_(fmt.qmin, fmt.qmax)",
        GRADIENT,
    ),
    Mutation(
        "wide-codes-in-float32", "qfunc.numerics.affine:widened",
        "scheme.format.bits > 24",
        "scheme.format.bits > 32",
        "tests/numerics/test_affine.py::test_32_bit_codes_are_exact",
    ),
    Mutation(
        "narrow-dtypes-computed-narrow", "qfunc.numerics.affine:widened",
        "return x.double() if wide else x.float()",
        "return x.double() if wide else x",
        "tests/numerics/test_special_values.py::test_sixteen_bit_floats_are_computed_in_float32",
    ),
    Mutation(
        "float64-computed-in-float32", "qfunc.numerics.affine:widened",
        "wide = x.dtype == torch.float64 or (",
        "wide = (",
        "tests/numerics/test_special_values.py::test_float64_is_computed_in_float64_with_float32_qparams",
    ),
    Mutation(
        "blocks-along-the-last-axis", "qfunc.numerics.affine:_block_views",
        "axis, x = shared.axis % x.ndim, filled(x, scheme)",
        "axis, x = x.ndim - 1, filled(x, scheme)",
        "tests/numerics/test_granularity.py::test_shared_scales_are_a_loop_over_the_blocks",
    ),
    Mutation(
        "compiled-mask-above-only", "qfunc.numerics.affine:_gradient_mask",
        "return (limited == unclamped).to(unclamped.dtype)",
        "return (limited <= unclamped).to(unclamped.dtype)",
        "tests/numerics/test_compile.py::test_compiled_equals_eager_in_every_format_and_dtype",
    ),
    Mutation(
        "nan-gets-a-gradient", "qfunc.numerics.affine:_gradient_mask",
        "limited.sub_(unclamped).logical_not()",
        "limited.sub_(unclamped).nan_to_num_().logical_not()",
        "tests/numerics/test_special_values.py::test_special_values_and_their_gradients",
    ),
    Mutation(
        "no-gradient-where-dynamo-skips-backward", "qfunc.numerics._grads:_with_traced_gradient",
        "return value - torch.where(mask != 0, x.detach() - x, 0)",
        "return value",
        "tests/numerics/test_compile.py::test_compiled_transforms_keep_the_gradient",
    ),
    Mutation(
        "mask-without-need", "qfunc.numerics._grads:_MaskedStraightThrough.setup_context",
        "if ctx.needs_input_grad[0]:",
        "if True:",
        "tests/numerics/test_compile.py::test_no_mask_is_made_where_no_gradient_is_wanted",
    ),
)  # fmt: skip
