"""Breakages of what a captured model keeps of the user's, and of leaves, arguments and tracers."""

from mutants.mutation import Mutation

KEPT, DISSOLVED, LEAVES = (f"qfunc/graph/{name}.py" for name in ("kept", "dissolved", "leaves"))
KEEPS = "tests/graph/test_kept.py"
TESTS = "tests/graph/test_leaves.py"

KEPT_OF_THE_USER = (
    Mutation(
        "kept-attributes-are-shared",
        KEPT,
        "vars(twin)[name] = copy.deepcopy(vars(module)[name], memo)",
        "vars(twin)[name] = vars(module)[name]",
        f"{KEEPS}::test_nothing_is_shared_with_the_caller",
    ),
    Mutation(
        "kept-references-are-float",
        KEPT,
        "copy.deepcopy(vars(module)[name], memo)",
        "copy.deepcopy(vars(module)[name])",
        f"{KEEPS}::test_a_method_that_reaches_a_float_submodule_is_refused",
    ),
    Mutation(
        "a-loss-is-dissolved",
        KEPT,
        "elif twin is None and ran and _is_aside(path, module, ran):",
        "elif False:",
        f"{KEEPS}::test_attributes_methods_and_properties_are_kept",
    ),
    Mutation(
        "a-module-without-tensors-is-missing-silently",
        DISSOLVED,
        "or error.name not in origin.children",
        "or True",
        f"{KEEPS}::test_a_method_that_reaches_a_float_submodule_is_refused",
    ),
    Mutation(
        "lambdas-break-the-pickle",
        DISSOLVED,
        "if k in state and not _pickles(state[k])",
        "if False",
        f"{KEEPS}::test_models_of_local_classes_and_with_lambdas_still_pickle",
    ),
    Mutation(
        "local-classes-break-the-pickle",
        DISSOLVED,
        "return origin if found is origin.kind else evolve(origin, kind=None)",
        "return origin",
        f"{KEEPS}::test_models_of_local_classes_and_with_lambdas_still_pickle",
    ),
    Mutation(
        "a-leaf-that-matches-nothing-is-ignored",
        LEAVES,
        "if not mine:",
        "if False:",
        f"{TESTS}::test_leaves_that_match_nothing",
    ),
    Mutation(
        "a-bound-container-becomes-inputs",
        LEAVES,
        "return _Bound(concrete[target])",
        "return concrete[target]",
        f"{TESTS}::test_concrete_arguments_are_no_inputs_any_more",
    ),
    Mutation(
        "a-tracer-of-the-user-s-is-changed",
        LEAVES,
        "copy.copy(given)",
        "given",
        f"{TESTS}::test_an_own_tracer_chooses_leaves_and_weights_are_still_seen",
    ),
    Mutation(
        "a-tracer-hides-the-weights-of-torch",
        LEAVES,
        'return ours or (not type(m).__module__.startswith("torch.nn") and theirs(m, module_qualified_name))',
        "return ours or theirs(m, module_qualified_name)",
        f"{TESTS}::test_an_own_tracer_chooses_leaves_and_weights_are_still_seen",
    ),
)
