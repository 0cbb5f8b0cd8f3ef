"""Breakages of what becomes of programs after run_decompositions."""

from mutants.mutation import Mutation

TESTS = "tests/graph/test_decomposed.py"
OPS = f"{TESTS}::test_the_ops_are_those_of_the_program_before"
QUANTIZED = f"{TESTS}::test_it_quantizes_as_before_and_the_runtime_computes_it"
PRODUCTS, CURVES = "qfunc/graph/recomposed_products.py", "qfunc/graph/recomposed_curves.py"

DECOMPOSED = (
    Mutation("biases-stand-apart", PRODUCTS, 'BIASES: Rewrites = {"add": _biased}', "BIASES: Rewrites = {}", QUANTIZED),
    Mutation("attention-of-another-scale", PRODUCTS, "factor * other", "factor", OPS),
    Mutation("two-factors-are-one", PRODUCTS, "if key is None or factor != other:", "if key is None:",
             f"{TESTS}::test_what_only_looks_alike_stays_what_it_is"),
    Mutation("every-norm-of-one-row-is-of-instances", PRODUCTS, "or not repeated or", "or",
             f"{TESTS}::test_what_only_looks_alike_stays_what_it_is"),
    Mutation("other-results-are-lost", "qfunc/graph/recomposed.py",
             "all(u.target is operator.getitem and u.args[1] == 0 for u in source.users)", "True",
             f"{TESTS}::test_what_only_looks_alike_stays_what_it_is"),
    Mutation("permutations-that-do-not-cancel", "qfunc/graph/recomposed.py",
             "return source.args[0] if dims == sorted(dims) else None", "return source.args[0]",
             f"{TESTS}::test_what_only_looks_alike_stays_what_it_is"),
    Mutation("softplus-of-one-slope", CURVES, "Call(_OPS.softplus.default, (x, beta, threshold))",
             "Call(_OPS.softplus.default, (x, 1.0, threshold))",
             f"{TESTS}::test_what_only_looks_alike_stays_what_it_is"),
    Mutation("training-is-decomposed", "qfunc/graph/recomposed.py", "if aten(node) in _TRAINING:", "if False:",
             f"{TESTS}::test_a_decomposed_program_of_training_is_refused"),
)  # fmt: skip
