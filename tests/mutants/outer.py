"""Breakages of models with quantized submodules."""

from mutants.mutation import Mutation

OUTER_MODULES = (
    Mutation(
        "ties-are-cut", "qfunc.graph.submodules:with_submodules",
        "memo: dict[int, Any] = _shared_tensors(outer, new, where) if where else {}",
        "memo: dict[int, Any] = {}",
        "tests/transforms/test_submodules.py::test_what_is_shared_stays_shared",
    ),
    Mutation(
        "the-outer-module-trains-itself", "qfunc.graph.submodules:run_submodules",
        "{id(p): p for p in outer.parameters()}).eval()",
        "{id(p): p for p in outer.parameters()})",
        "tests/transforms/test_submodules.py::test_the_rest_runs_in_evaluation_mode",
    ),
    Mutation(
        "hooks-are-lost", "qfunc.graph.hooks:transfer_hooks",
        "if vars(old).get(name):",
        "if False:",
        "tests/transforms/test_submodules.py::test_the_outer_module_stays_what_it_is",
    ),
    Mutation(
        "names-within-the-submodule", "qfunc.transforms.submodules:capture_submodule",
        "return within_module(attach(captured, evolve(record, within=path, around=classes, bare=bare)), classes)",
        "return captured",
        "tests/transforms/test_submodules.py::test_reports_name_tensors_by_their_paths_in_the_whole_model",
    ),
    Mutation(
        "a-layer-alone-has-a-name-of-its-own", "qfunc.transforms.submodules:capture_submodule",
        "around=classes, bare=bare)",
        'around=classes, bare="")',
        "tests/transforms/test_submodules.py::test_a_layer_alone_is_known_by_its_path_and_its_classes",
    ),
    Mutation(
        "fixed-arguments-take-any-value", "qfunc.graph.arguments:free_arguments",
        "if a.fixed and not _same(a.value, value):",
        "if False:",
        "tests/graph/test_arguments.py::test_another_value",
    ),
    Mutation(
        "batches-of-a-loop-vary", "qfunc.graph.arguments:require_batch",
        "if record is None or record.batch is None:",
        "if True:",
        "tests/graph/test_arguments.py::test_a_forward_that_counts_on_its_batch",
    ),
    Mutation(
        "emulation-cuts-longer-inputs", "qfunc.numerics.kernels.accumulators:_runs",
        "pairwise((0, *ends[:-1], None))",
        "pairwise((0, *ends))",
        "tests/execution/test_unlike_calibration.py::test_inputs_of_another_length",
    ),
    Mutation(
        "kinds-that-are-none", "qfunc.placement.without_effect.unmatched_selectors:_require_kinds",
        "        if isinstance(kind, str) and kind not in known:",
        "        if False:",
        "tests/test_wrong_uses.py::test_a_wrong_use[a rule for a kind that is none]",
    ),
    Mutation(
        "inputs-are-skipped-in-vain", "qfunc.placement.without_effect.unused_rules:_require_slot",
        "if isinstance(rule.output, KeepFloat) and readers and",
        "if isinstance(rule.output, KeepFloat) and not readers and",
        (
            "tests/test_wrong_uses.py::test_a_wrong_use[a skip of an input]",
            "tests/transforms/test_overrides.py::test_an_input_may_be_skipped_where_no_op_reads_its_codes",
        ),
    ),
    Mutation(
        "overrides-in-vain", "qfunc.placement.without_effect.unused_rules:_require_site",
        'if p.site.slot in _CONSTANT_SLOTS else "activation") == change.role]',
        'if p.site.slot in _CONSTANT_SLOTS else "activation") != ""]',
        "tests/test_wrong_uses.py::test_a_wrong_use[an override of activations by the name of a weight]",
    ),
    Mutation(
        "names-inside-selectors-are-not-looked-up", "qfunc.placement.without_effect.unmatched_selectors:require_matches",
        "if isinstance(leaf, _NAMING):",
        "if False:",
        "tests/test_wrong_uses.py::test_a_wrong_use[a fusion of a name that is nowhere]",
    ),
    Mutation(
        "edges-do-not-pass-moves", "qfunc.placement.without_effect.unused_rules:_require_edge",
        "for t in _same_codes(n, plan, target)):",
        "for t in (n,)):",
        "tests/transforms/test_overrides.py::test_an_edge_may_be_named_behind_an_op_that_moves_its_codes",
    ),
    Mutation(
        "wrappers-are-taken", "qfunc.graph.stages:require_unwrapped",
        "if compiled or isinstance(model, nn.DataParallel",
        "if compiled and isinstance(model, nn.DataParallel",
        "tests/test_wrong_uses.py::test_a_wrong_use[explaining a DataParallel]",
    ),
    Mutation(
        "all-matches-of-a-pattern", "qfunc.transforms.submodules:select_submodules",
        "if not any(_inside(path, other) for other in matching)]",
        "if matching]",
        "tests/transforms/test_submodules.py::test_what_is_shared_stays_shared",
    ),
    Mutation(
        "arguments-by-name-are-dropped", "qfunc.transforms.submodules:inputs_of",
        "{p.name: p.default for p in omitted}",
        "{}",
        "tests/transforms/test_submodules.py::test_an_option_that_is_given_by_name",
    ),
)  # fmt: skip
