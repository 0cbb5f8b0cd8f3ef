"""Breakages of the packages that other machines check."""

from mutants.mutation import Mutation

PROOF = (
    Mutation(
        "proof-ops-without-kernels-are-exact", "qfunc.proof.expected:_exact_nodes",
        "(unit.group.output in alone or _moves(partition, unit)) and found.issuperset(read)",
        "True",
        "tests/proof/test_prove.py::test_tensors_after_an_op_without_a_kernel_need_not_be_equal",
    ),
    Mutation(
        "proof-curves-are-exact-on-every-processor", "qfunc.proof.expected:_exact_nodes",
        "[] if compared else [u.kind for u in partition.units if _is_curve(u)]",
        "[]",
        "tests/proof/test_prove.py::test_curves_in_float_are_exact_on_the_processor_that_they_were_compared_on",
    ),
    Mutation(
        "proof-artifacts-of-other-models", "qfunc.proof.prove:_require_own",
        "qparams[0] != qparams[1]",
        "False",
        "tests/proof/test_prove.py::test_mistakes_are_one_line",
    ),
)  # fmt: skip
