"""Breakages of schemes made in a trace, and of what algorithms refuse inside them."""

from mutants.mutation import Mutation

ALTERED, POWERS, ERROR, POT, ORT = (
    f"qfunc/estimators/{name}.py" for name in ("altered", "power_of_two", "error", "pot_mode", "ort_entropy")
)
TESTS = "tests/estimators/test_traces.py"
GRAPH = f"{TESTS}::test_one_graph_from_nothing_to_qparams"
REFUSED = "tests/estimators/test_sketch.py::test_bad_fields_are_refused"

TRACES = (
    Mutation(
        "altered-keeps-no-rule",
        ALTERED,
        "new.__attrs_post_init__()",
        "pass",
        f"{TESTS}::test_altered_keeps_the_rules_between_fields",
    ),
    Mutation(
        "altered-changes-nothing",
        ALTERED,
        "changes.get(field.name, getattr(spec, field.name))",
        "getattr(spec, field.name)",
        f"{TESTS}::test_altered_is_attrs_evolve",
    ),
    Mutation("a-row-is-a-new-scale", ERROR, "altered(scheme, scale=ONE)", "altered(scheme, scale=Scale())", GRAPH),
    Mutation(
        "ort-entropy-row-by-row-in-a-trace",
        ORT,
        "if torch.compiler.is_compiling() else torch.stack",
        "if False else torch.stack",
        f"{TESTS}::test_the_trace_of_ort_entropy_is_as_long_for_many_blocks_as_for_one",
    ),
    Mutation("powers-of-powers-of-two", POWERS, 'part = getattr(part, "inner", None)', "part = None", REFUSED),
    Mutation("pot-mode-inside", POWERS, 'if hasattr(part, "scheme"):', "if False:", REFUSED),
    Mutation(
        "adaround-around-dorefa",
        "qfunc/functions/adaround.py",
        "if type(value) is DoReFa:",
        "if False:",
        "tests/functions/test_adaround.py::test_bad_fields_are_refused",
    ),
)
