"""Breakages of what becomes of programs after run_decompositions."""

from mutants.mutation import Mutation

OPS = "tests/frontend/test_recompose.py::test_the_ops_are_those_of_the_program_before"
QUANTIZED = "tests/frontend/test_recompose.py::test_it_quantizes_as_before_and_the_runtime_computes_it"

DECOMPOSED = (
    Mutation(
        "biases-stand-apart", "qfunc.frontend.export.recompose_linear:BIASES",
        'op("linear", _X, tensor("weight"), None)',
        'op("linear", _X, tensor("weight"), 1)',
        QUANTIZED,
    ),
    Mutation("attention-of-another-scale", "qfunc.frontend.export.recompose_linear:_attention",
        'found["factor"] * found["factor"]', 'found["factor"]', OPS),
    Mutation(
        "two-factors-are-one", "qfunc.frontend.export.recompose_linear:_SIDES",
        'op("mul", _transposed(tensor("key")), _FACTOR)',
        'op("mul", _transposed(tensor("key")), Var(""))',
        "tests/frontend/test_recompose.py::test_what_only_looks_alike_stays_what_it_is",
    ),
    Mutation(
        "every-norm-of-one-row-is-of-instances", "qfunc.frontend.export.recompose_linear:_REPEATED",
        'op("repeat", tensor(name))',
        "tensor(name)",
        "tests/frontend/test_recompose.py::test_what_only_looks_alike_stays_what_it_is",
    ),
    Mutation(
        "other-results-are-lost", "qfunc.frontend.export.aten:AtenReader.kind",
        "all(u.target is operator.getitem and u.args[1] == 0 for u in source.users)",
        "True",
        "tests/frontend/test_recompose.py::test_what_only_looks_alike_stays_what_it_is",
    ),
    Mutation(
        "permutations-that-do-not-cancel", "qfunc.frontend.export.recompose:_do_not_cancel",
        "if dims == sorted(dims) else",
        "if dims else",
        "tests/frontend/test_recompose.py::test_what_only_looks_alike_stays_what_it_is",
    ),
    Mutation(
        "softplus-of-one-slope", "qfunc.frontend.export.recompose:_CURVES",
        '"x", "beta", "threshold"',
        '"x", 1.0, "threshold"',
        "tests/frontend/test_recompose.py::test_what_only_looks_alike_stays_what_it_is",
    ),
    Mutation(
        "celu-of-another-alpha", "qfunc.frontend.export.recompose:_CURVES",
        'op("expm1", _X)), "x", 1.0)',
        'op("expm1", _X)), "x", 2.0)',
        OPS,
    ),
    Mutation(
        "celu-above-any-number", "qfunc.frontend.export.recompose:_CURVES",
        'op("where", _POSITIVE, _X, op("expm1", _X))',
        'op("where", op("gt", _X, Var("")), _X, op("expm1", _X))',
        "tests/frontend/test_recompose.py::test_what_only_looks_alike_stays_what_it_is",
    ),
    Mutation(
        "training-is-decomposed", "qfunc.frontend.export.recompose:recompose",
        "if aten(node) in _TRAINING:",
        "if False:",
        "tests/frontend/test_recompose.py::test_a_decomposed_program_of_training_is_refused",
    ),
)  # fmt: skip
