"""Breakages of CMSIS-NN's facts, caught by a simulator of its sources' sentences."""

from mutants.mutation import Mutation

SOURCES = "tests/lowering/tflite/test_litert_micro.py::test_the_emulation_is_what_the_sources_say"
TIES = "tests/lowering/tflite/test_litert_micro.py::test_ties_are_rounded_as_the_sources_say"

CMSIS_NN = (
    Mutation(
        "cmsis-nn-rounds-once", "qfunc.targets.cmsis_nn:cmsis_nn",
        "Kernel(PRODUCTS | MEANS, FixedPoint(), formats=BYTES)",
        'Kernel(PRODUCTS | MEANS, FixedPoint("half_away"), formats=BYTES)',
        SOURCES, case="int8",
    ),
    Mutation(
        "cmsis-nn-rounds-up", "qfunc.targets.cmsis_nn:cmsis_nn",
        "Kernel(PRODUCTS | MEANS, FixedPoint(), formats=BYTES)",
        'Kernel(PRODUCTS | MEANS, FixedPoint(("srdhm", "half_up")), formats=BYTES)',
        TIES, case="int8",
    ),
    Mutation(
        "cmsis-nn-16x8-keeps-31-bits", "qfunc.targets.cmsis_nn:cmsis_nn_16x8",
        'FixedPoint("half_up", accumulator=64, reduced=15)',
        'FixedPoint("half_up", accumulator=32)',
        SOURCES, case="16x8",
    ),
    Mutation(
        "cmsis-nn-16x8-reduces-to-16-bits", "qfunc.targets.cmsis_nn:cmsis_nn_16x8",
        "reduced=15",
        "reduced=16",
        SOURCES, case="16x8",
    ),
    Mutation(
        "cmsis-nn-16x8-rounds-down", "qfunc.targets.cmsis_nn:cmsis_nn_16x8",
        'FixedPoint("half_up", accumulator',
        'FixedPoint("floor", accumulator',
        SOURCES, case="16x8",
    ),
    Mutation(
        "cmsis-nn-16x8-has-biases-of-32-bits", "qfunc.targets.cmsis_nn:cmsis_nn_16x8",
        "bias=DerivedQParams(Int(64))",
        "bias=DerivedQParams()",
        "tests/lowering/tflite/test_litert_micro.py::test_biases_of_more_than_32_bits",
    ),
    Mutation(
        "reduced-multipliers-do-not-saturate", "qfunc.numerics.kernels.fixed_point:reduced_multiplier",
        ".clamp(max=2**reduced - 1)",
        "",
        "tests/lowering/tflite/test_litert_micro.py::test_a_multiplier_is_reduced_to_15_bits", case="2147483647",
    ),
    Mutation(
        "reduced-multipliers-are-cut-off", "qfunc.numerics.kernels.fixed_point:reduced_multiplier",
        "(m + 2 ** (k - 1))",
        "m",
        "tests/lowering/tflite/test_litert_micro.py::test_a_multiplier_is_reduced_to_15_bits", case="1073774592",
    ),
)  # fmt: skip
