"""Breakages of schemes made in a trace, and of what algorithms refuse inside them."""

from mutants.mutation import Mutation

GRAPH = "tests/estimators/test_traces.py::test_one_graph_from_nothing_to_qparams"
REFUSED = "tests/estimators/test_sketch.py::test_bad_fields_are_refused"

TRACES = (
    Mutation(
        "replace_fields-keeps-no-rule", "qfunc.estimators.replace_fields:replace_fields",
        "new.__attrs_post_init__()",
        "pass",
        "tests/estimators/test_traces.py::test_replace_fields_keeps_the_rules_between_fields",
    ),
    Mutation(
        "replace_fields-changes-nothing", "qfunc.estimators.replace_fields:replace_fields",
        "changes.get(field.name, getattr(spec, field.name))",
        "getattr(spec, field.name)",
        "tests/estimators/test_traces.py::test_replace_fields_is_attrs_evolve",
    ),
    Mutation(
        "a-row-is-a-new-scale", "qfunc.estimators.error:_of_rows",
        "replace_fields(scheme.scale, shared=_PER_TENSOR)",
        "type(scheme.scale)()",
        GRAPH,
    ),
    Mutation(
        "ort-entropy-row-by-row-in-a-trace", "qfunc.estimators.ort_entropy:OrtEntropy.range",
        "if torch.compiler.is_compiling() else torch.stack",
        "if False else torch.stack",
        "tests/estimators/test_traces.py::test_the_trace_of_ort_entropy_is_as_long_for_many_blocks_as_for_one",
    ),
    Mutation(
        "powers-of-powers-of-two", "qfunc.estimators.power_of_two:_inner",
        'part = getattr(part, "inner", None)',
        "part = None",
        REFUSED,
    ),
    Mutation("pot-mode-inside", "qfunc.estimators.power_of_two:_inner", 'if hasattr(part, "scheme"):', "if False:", REFUSED),
    Mutation(
        "adaround-around-dorefa", "qfunc.functions.adaround:_of_x",
        "if type(value) in (DoReFa, Compensation):",
        "if False:",
        "tests/functions/test_adaround.py::test_bad_fields_are_refused",
    ),
)  # fmt: skip
