"""Words of a target that nothing reads any more, each caught by its witness."""

from mutants.mutation import Mutation

WORD = "tests/specs/test_every_word_works.py::test_the_word_changes_something"

WORDS = (
    Mutation(
        "a-dead-word-of-sums", "qfunc.arithmetic.sums:SumShifted.kernel",
        "sign, self.lanes,",
        "sign, None,",
        WORD, case="SumShifted.lanes",
    ),
    Mutation(
        "a-dead-word-of-accumulators", "qfunc.specs.arithmetic.accumulator:canonical",
        "return value.bits if type(value) is Accumulator and value.overflow == Wraps() else value",
        "return value.bits if type(value) is Accumulator else value",
        WORD, case="SaturatesEachStep.order",
    ),
    Mutation(
        "rows-after-the-last", "qfunc.numerics.kernels.resize:_integer_places",
        'rounding_mode="trunc").clamp(0, size_in - 1)',
        'rounding_mode="trunc").clamp(min=0)',
        WORD, case="Bilinear.bits",
    ),
)  # fmt: skip
