"""Breakages of CMSIS-NN's facts, caught by a simulator of its sources' sentences."""

from mutants.mutation import Mutation

SOURCES = "tests/lowering/tflite/test_litert_micro.py::test_the_emulation_is_what_the_sources_say"
DRAWN = "tests/lowering/tflite/test_litert_micro.py::test_drawn_ops_are_what_the_sources_say"

CMSIS_NN = (
    Mutation(
        "cmsis-nn-rounds-once", "qfunc.targets.cmsis_nn:cmsis_nn",
        "Kernel(PRODUCTS | MEANS, FixedPoint(), formats=BYTES)",
        'Kernel(PRODUCTS | MEANS, FixedPoint("half_away"), formats=BYTES)',
        SOURCES, case="0",
    ),
    Mutation(
        "cmsis-nn-rounds-up", "qfunc.targets.cmsis_nn:cmsis_nn",
        "Kernel(PRODUCTS | MEANS, FixedPoint(), formats=BYTES)",
        'Kernel(PRODUCTS | MEANS, FixedPoint(("srdhm", "half_up")), formats=BYTES)',
        DRAWN,
    ),
)  # fmt: skip
