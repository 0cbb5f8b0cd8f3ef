"""Wrong facts of the arithmetics of runtimes, which graphs of many ops show at halves; and of the bounds of float units."""

from mutants.mutation import Mutation

LITERT = "tests/lowering/tflite/test_litert_ops.py::test_halves_become_the_codes_that_the_kernels_compute"
BEYOND = "tests/lowering/tflite/test_litert_extremes.py::test_values_beyond_32_bits_of_steps_become_the_codes_of_the_kernels"
TOSA_HALVES = "tests/lowering/tosa/test_tosa_ops.py::test_halves_become_the_codes_that_the_reference_model_computes"
PTE = "tests/lowering/xnnpack/test_executorch_ops.py::test_halves_become_the_codes_that_xnnpack_computes"
NCNN_HALVES = "tests/lowering/ncnn_files/test_ncnn_ops.py::test_halves_become_the_codes_that_ncnn_computes"
ORT_HALVES = "tests/lowering/onnxruntime/test_onnxruntime_ops.py::test_halves_become_the_codes_that_the_runtime_computes"
BESIDE = "tests/lowering/test_beside_ties.py::test_they_are_the_runtime_s"
BOUND = "tests/emulation/test_float_units.py::test_float32_is_within_the_bound_and_the_bound_is_near_it"
EPS = "tests/emulation/test_float_units.py::test_a_wrong_eps_is_beyond_the_bound_on_every_runtime"

TIES = (
    Mutation(
        "reference-linear-rounds-half-up", "qfunc.targets.litert.target:litert_reference",
        'Kernel(Op("linear") | BY_MATRIX, FloatMultiplier("half_away", dtype="float64"), formats=BYTES)',
        'Kernel(Op("linear") | BY_MATRIX, FloatMultiplier("half_up", dtype="float64"), formats=BYTES)',
        LITERT, case="reference",
    ),
    Mutation(
        "reference-linear-has-31-bits", "qfunc.targets.litert.target:litert_reference",
        'Kernel(Op("linear") | BY_MATRIX, FloatMultiplier("half_away", dtype="float64"), formats=BYTES)',
        'Kernel(Op("linear") | BY_MATRIX, FixedPoint("half_away"), formats=BYTES)',
        BESIDE, case="litert_reference",
    ),
    Mutation(
        "optimised-linear-has-an-exact-product", "qfunc.targets.litert.target:ROWS_BY_RUY",
        "evolve(RUY, float_product=True)",
        "RUY",
        BESIDE, case="litert_optimised",
    ),
    Mutation(
        "reference-quantize-saturates", "qfunc.targets.litert.target:INTO_INT32",
        "QuantizeInt32()",
        'SoftmaxFixed()',
        BEYOND, case="reference--128",
    ),
    Mutation(
        "reference-add-rounds-half-up", "qfunc.targets.litert.target:litert_reference",
        "Kernel(SUMS, SumShifted(), formats=BYTES)",
        'Kernel(SUMS, SumShifted(steps=("srdhm", "half_up")), formats=BYTES)',
        LITERT, case="reference",
    ),
    Mutation(
        "reference-pools-round-half-up", "qfunc.targets.litert.target:UNITS",
        'AverageCodes("half_away")',
        'AverageCodes("half_up")',
        LITERT, case="reference",
    ),
    Mutation(
        "reference-means-shift-once-more", "qfunc.numerics.kernels.activations:mean_fixed",
        "count.bit_length() - 1, 32",
        "count.bit_length(), 32",
        LITERT, case="reference",
    ),
    Mutation(
        "transposed-scales-along-the-last-axis", "qfunc.lowering.nhwc.linear:conv_transposed",
        "weights = stored(step, weight.transpose(1, 2, 3, 0), qparams, 0)",
        "weights = stored(step, weight.transpose(1, 2, 3, 0), qparams, 3)",
        LITERT, case="reference",
    ),
    Mutation(
        "xnnpack-bounds-are-rounded-without-zero", "qfunc.targets.litert.target:CLAMPED",
        'Bounds(zero_point="before")',
        "Bounds()",
        LITERT, case="xnnpack",
    ),
    Mutation(
        "xnnpack-means-add-the-zero-after-rounding", "qfunc.targets.litert.target:MEAN",
        'FloatMultiplier(zero_point="before")',
        "FloatMultiplier()",
        LITERT, case="xnnpack",
    ),
    Mutation(
        "xnnpack-leaky-relu-rounds-half-even", "qfunc.targets.litert.target:litert",
        "FixedBits(least=2**-8)",
        'FixedBits("half_even", least=2**-8)',
        LITERT, case="xnnpack",
    ),
    Mutation(
        "xnnpack-resizes-with-ten-bits", "qfunc.targets.litert.target:litert",
        'Bilinear("float", 11)',
        'Bilinear("float", 10)',
        LITERT, case="xnnpack",
    ),
    Mutation(
        "optimised-quantize-rounds-its-rest-half-even", "qfunc.targets.litert.target:INTO_LANES",
        "QuantizeLanes()",
        'QuantizeLanes("half_even")',
        LITERT, case="optimised",
    ),
    Mutation(
        "optimised-dequantize-of-sixteen-lanes", "qfunc.targets.litert.target:FROM_LANES",
        "DequantizeSum()",
        "DequantizeSum(lanes=16)",
        LITERT, case="optimised",
    ),
    Mutation(
        "tosa-clamps-a-code-too-low", "qfunc.targets.tosa.rescale:write_clamp",
        "clamp_codes(graph, x, out, codes[0], codes[1])",
        "clamp_codes(graph, x, out, codes[0], codes[1] - 1)",
        TOSA_HALVES,
    ),
    Mutation(
        "tosa-pools-without-their-zero-point", "qfunc.targets.tosa.target:tosa",
        'AverageCodes("half_away", centred=True)',
        'AverageCodes("half_away")',
        TOSA_HALVES,
    ),
    Mutation(
        "executorch-prelu-rounds-half-away", "qfunc.arithmetic.float_multiplier:FloatMultiplier._prelu",
        "multipliers, *unit.code_range, self.rounding",
        'multipliers, *unit.code_range, "half_away"',
        PTE,
    ),
    Mutation(
        "ncnn-convolutions-round-twice", "qfunc.targets.ncnn.target:FUSED",
        "evolve(THROUGH, fma=True)",
        "THROUGH",
        NCNN_HALVES, case="False",
    ),
    Mutation(
        "ncnn-multiplies-scales", "qfunc.targets.ncnn.target:THROUGH",
        ", reciprocals=True)",
        ")",
        NCNN_HALVES, case="False",
    ),
    Mutation(
        "onnxruntime-products-round-half-away", "qfunc.targets.onnxruntime.target:PRODUCTS",
        'Kernel(Op(("conv", "linear", "matmul")), FloatMultiplier(),',
        'Kernel(Op(("conv", "linear", "matmul")), FloatMultiplier("half_away"),',
        ORT_HALVES,
    ),
    Mutation(
        "onnxruntime-sums-round-half-away", "qfunc.targets.onnxruntime.target:ADD",
        "SumFma()",
        'SumFma("half_away")',
        ORT_HALVES,
    ),
    Mutation(
        "norms-without-the-error-of-their-mean", "qfunc.emulation.norm_bounds:spread_of",
        "mean_error = mean(e) + (n + 2) * _U * mean(v.abs()) if centred else torch.zeros_like(m)",
        "mean_error = torch.zeros_like(m)",
        BOUND, case="0.001-layer_norm",
    ),
    Mutation(
        "response-norms-of-exact-squares", "qfunc.emulation.norm_bounds:_response_norm",
        "mean(2 * v.abs() * e + e * e)",
        "torch.zeros_like(e)",
        BOUND, case="0.001-local_response_norm",
    ),
    Mutation(
        "products-without-the-errors-of-their-factors", "qfunc.emulation.sum_bounds:_product",
        "error: Tensor = largest - value.abs() +",
        "error: Tensor =",
        BOUND, case="0.001-prod",
    ),
    Mutation(
        "products-never-underflow", "qfunc.emulation.sum_bounds:_product",
        " + 2.0**-126 * factor)",
        ")",
        "tests/emulation/test_float_units.py::test_a_product_that_float32_rounds_to_zero_is_within_its_bound",
    ),
    Mutation(
        "errors-of-factors-are-forgotten", "qfunc.emulation.sum_bounds:_sum_of_products",
        "error = error + call(node, arguments, magnitude)",
        "pass",
        BOUND, case="0.001-conv",
    ),
    Mutation(
        "extrema-anywhere", "qfunc.emulation.error_bounds:at_extremum",
        "values.amax(-1).reshape(places.shape) - found",
        "torch.zeros_like(found)",
        "tests/emulation/test_float_units.py::test_the_place_of_an_extremum_is_bounded_by_the_error_of_the_values",
    ),
    Mutation(
        "bicubic-places-are-exact", "qfunc.emulation.sum_bounds:_resize",
        "2 * x.error.amax(axes, keepdim=True)",
        "torch.zeros_like(largest)",
        BOUND, case="0.001-resize, bicubic",
    ),
    Mutation(
        "codes-beyond-sums-are-explained", "qfunc.analysis.verification_report:Report._explained",
        "r.mismatches if r.exact else not r.within_one",
        "not r.within_one",
        "tests/testing/test_outcomes.py::test_a_report_is_judged_by_what_its_runner_declares",
    ),
    Mutation(
        "bounds-are-no-mismatch", "qfunc.analysis.verification_report:Report._beyond",
        'next((r for r in self.of("float") if r.mismatches), None)',
        "None",
        EPS, case="onnxruntime",
    ),
)  # fmt: skip
