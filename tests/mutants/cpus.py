"""Wrong facts of other processors, which the runtimes show there; without the machines these tests are skipped."""

from mutants.mutation import Mutation

LITERT = "tests/lowering/machines/test_litert_machines.py::test_halves_become_the_codes_that_the_kernels_compute"
SQUARES = "tests/lowering/machines/test_litert_machines.py::test_sums_with_the_zero_point_are_rounded_once_on_arm64"
PAIRS = "tests/lowering/machines/test_litert_machines.py::test_pairs_of_any_scales_are_what_the_kernels_compute"
BEYOND = "tests/lowering/machines/test_litert_machines.py::test_values_beyond_32_bits_are_what_the_kernels_compute"
NCNN = "tests/lowering/machines/test_ncnn_machines.py::test_depthwise_convolutions_are_what_ncnn_computes"
SOFTMAX = "tests/lowering/machines/test_onnxruntime_machines.py::test_softmax_of_any_scale_is_what_the_runtime_computes"
FLAGS = "tests/lowering/test_runner_support.py::test_processors_are_known_by_their_flags"

CPUS = (
    Mutation(
        "arm64-squares-are-rounded-twice",
        "qfunc.targets.litert.target:XNNPACK_ON_ARM64",
        "evolve(SQUARED, fma=True)",
        "SQUARED",
        SQUARES,
    ),
    Mutation(
        "arm64-conversions-do-not-saturate",
        "qfunc.targets.litert.target:REFERENCE_ON_ARM64",
        "QuantizeInt32(saturates=True)",
        "QuantizeInt32()",
        BEYOND,
        case="0-reference-arm64",
    ),
    Mutation(
        "arm64-hardswish-has-no-whole-vectors",
        "qfunc.targets.litert.target:CURVES_ON_ARM64",
        "HardSwish16(lanes=8)",
        "HardSwish16(lanes=10000)",
        LITERT,
        case="optimised-arm64",
    ),
    Mutation(
        "arm64-products-are-rounded-half-away",
        "qfunc.targets.litert.target:OPTIMISED_ON_ARM64",
        'FixedPointGemv(("sqdmulh", "half_up"))',
        'FixedPointGemv(("sqdmulh", "half_away"))',
        LITERT,
        case="optimised-arm64",
    ),
    Mutation(
        "arm64-depthwise-multiplies-by-the-reciprocal",
        "qfunc.targets.ncnn.target:ON_ARM64",
        "quotient=True",
        "quotient=False",
        NCNN,
        case="arm64",
    ),
    Mutation(
        "wasm-transposed-convolutions-have-vectors",
        "qfunc.targets.litert.target:ON_WASM",
        "evolve(BY_COLUMNS, arithmetic=FixedPoint())",
        "BY_COLUMNS",
        LITERT,
        case="xnnpack-node",
    ),
    Mutation(
        "wasm-sums-have-vectors",
        "qfunc.targets.litert.target:ON_WASM",
        "evolve(BY_VECTORS[1], arithmetic=SumShifted())",
        "BY_VECTORS[1]",
        PAIRS,
        case="xnnpack-node",
    ),
    Mutation(
        "avxvnni-depthwise-rounds-once",
        "qfunc.targets.ncnn.target:BUILDS",
        "for cpu in (cpus.x86_64_avxvnni, cpus.x86_64_avx2)",
        "for cpu in (cpus.x86_64_avx2,)), *(Build(cpu) for cpu in (cpus.x86_64_avxvnni,)",
        NCNN,
        case="x86-64-avxvnni",
    ),
    Mutation(
        "arm64-softmax-does-not-saturate",
        "qfunc.targets.onnxruntime.target:SATURATED",
        "SoftmaxTable(saturates=True)",
        "SoftmaxTable()",
        SOFTMAX,
        case="0-arm64",
    ),
    Mutation("avxvnni-is-vnni", "qfunc.lowering.runner_support:_REPORTED", "FOURS[1:]", "FOURS", FLAGS),
)
