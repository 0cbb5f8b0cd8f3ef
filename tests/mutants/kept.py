"""Breakages of what a captured model keeps of the user's, and of leaves, arguments and tracers."""

from mutants.mutation import Mutation

KEPT_OF_THE_USER = (
    Mutation(
        "kept-attributes-are-shared", "qfunc.graph.user_attributes:copy_user_attributes",
        "vars(counterpart)[name] = copy.deepcopy(vars(module)[name], memo)",
        "vars(counterpart)[name] = vars(module)[name]",
        "tests/graph/test_user_attributes.py::test_nothing_is_shared_with_the_caller",
    ),
    Mutation(
        "kept-references-are-float", "qfunc.graph.user_attributes:copy_user_attributes",
        "copy.deepcopy(vars(module)[name], memo)",
        "copy.deepcopy(vars(module)[name])",
        "tests/graph/test_user_attributes.py::test_a_method_that_reaches_a_float_submodule_is_refused",
    ),
    Mutation(
        "a-loss-is-dissolved", "qfunc.graph.user_attributes:copy_user_attributes",
        "elif counterpart is None and op_paths and _is_unused(path, module, used):",
        "elif False:",
        "tests/graph/test_user_attributes.py::test_attributes_methods_and_properties_are_kept",
    ),
    Mutation(
        "a-module-without-tensors-is-missing-silently", "qfunc.graph.module_shells:_missing_submodule_error",
        "or error.name not in origin.children",
        "or True",
        "tests/graph/test_user_attributes.py::test_a_method_that_reaches_a_float_submodule_is_refused",
    ),
    Mutation(
        "lambdas-break-the-pickle", "qfunc.graph.module_shells:pack_state",
        "if k in state and not _is_picklable(state[k])",
        "if False",
        "tests/graph/test_user_attributes.py::test_models_of_local_classes_and_with_lambdas_still_pickle",
    ),
    Mutation(
        "local-classes-break-the-pickle", "qfunc.graph.module_shells:pack_shells",
        "return origin if importable is origin.kind else evolve(origin, kind=None)",
        "return origin",
        "tests/graph/test_user_attributes.py::test_models_of_local_classes_and_with_lambdas_still_pickle",
    ),
    Mutation(
        "a-leaf-that-matches-nothing-is-ignored", "qfunc.frontend.options:leaf_classes",
        "if not matches:",
        "if False:",
        "tests/frontend/test_options.py::test_leaves_that_match_nothing",
    ),
    Mutation(
        "a-bound-container-becomes-inputs", "qfunc.frontend.options:bind",
        "return _Bound(concrete[target])",
        "return concrete[target]",
        "tests/frontend/test_options.py::test_concrete_arguments_are_no_inputs_any_more",
    ),
    Mutation(
        "a-tracer-of-the-user-s-is-changed", "qfunc.frontend.options:custom_tracer",
        "copy.copy(given)",
        "given",
        "tests/frontend/test_options.py::test_an_own_tracer_chooses_leaves_and_weights_are_still_seen",
    ),
    Mutation(
        "a-tracer-hides-the-weights-of-torch", "qfunc.frontend.options:custom_tracer",
        "(asks and user_is_leaf(m, module_qualified_name))",
        "user_is_leaf(m, module_qualified_name)",
        "tests/frontend/test_options.py::test_an_own_tracer_chooses_leaves_and_weights_are_still_seen",
    ),
)  # fmt: skip
