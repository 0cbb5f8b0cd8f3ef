"""Breakages of capture and spellings."""

from mutants.mutation import Mutation

PURE = "tests/frontend/test_capture_in_place.py::test_pure_form_equals_eager"
ROAD = "tests/ops/test_spellings.py::test_fx_road"

GRAPH = (
    # in-place writes
    Mutation(
        "in-place-aliases-keep-the-old-value", "qfunc.frontend.functionalize:_Builder._write_through",
        "self.env.update(dict.fromkeys(names, current[tensor]))",
        "pass",
        PURE, case="twice-fx",
    ),
    Mutation(
        "in-place-other-names-forgotten", "qfunc.frontend.aliasing:Storage.write",
        "names = {tensor: self._names(tensor) for tensor in through}",
        "names = {tensor: {tensor} for tensor in through}",
        PURE,
    ),
    Mutation(
        "in-place-through-a-view-accepted", "qfunc.frontend.aliasing:Storage.write",
        "if any(self.order[user] > position for user in relative.users):",
        "if False:",
        "tests/frontend/test_capture_in_place.py::test_refused_with_the_line_of_the_model",
    ),
    Mutation(
        "in-place-module-overlooked", "qfunc.frontend.functionalize:_Builder.step",
        'getattr(module, "inplace", False) is True',
        "False",
        "tests/frontend/test_capture_in_place.py::test_training_equals_eager_with_the_same_seed",
    ),
    # numbers computed from sizes
    Mutation(
        "number-is-a-slot", "qfunc.ops.node:slots",
        "isinstance(v, fx.Node) and _is_tensor(v)",
        "isinstance(v, fx.Node)",
        "tests/frontend/test_computed_numbers.py::test_a_number_is_no_site",
    ),
    Mutation(
        "computed-number-stays-a-node", "qfunc.lowering.onnx.context:OpContext._known",
        "return found if _is_plain(found) else value",
        "return value",
        "tests/frontend/test_computed_numbers.py::test_both_ways_to_capture_give_the_same_codes_and_the_runtime_agrees",
        case="numbers",
    ),
    Mutation(
        "exported-pool-is-sliced", "qfunc.frontend.multi_output:is_only_result",
        "return True",
        "return False",
        "tests/frontend/test_computed_numbers.py::test_maxima_of_an_exported_adaptive_pool",
    ),
    # spellings
    Mutation(
        "rsub-not-swapped", "qfunc.ops.arithmetic:_rsub",
        "(call[0], (call[1][1], call[1][0], *call[1][2:]))",
        "call",
        ROAD, case="rsub",
    ),
    Mutation("axis-is-no-dim", "qfunc.ops.canonicalize:_RENAMED", '"axis": "dim"', '"axis": "axis"', ROAD, case="concat"),
    Mutation(
        "deconv-arguments-swapped", "qfunc.ops.linear:_DECONV",
        "output_padding=0 groups=1 dilation=1",
        "output_padding=0 dilation=1 groups=1",
        ROAD, case="conv_transpose2d",
    ),
    Mutation(
        "pool-stride-one", "qfunc.ops.pooling:_pool",
        "call[1][2] or call[1][1]",
        "call[1][2] or 1",
        ROAD, case="max_pool",
    ),
    Mutation(
        "alpha-dropped", "qfunc.ops.arithmetic:_with_alpha",
        "if call is None or alpha == 1:",
        "if True:",
        ROAD, case="scaled_add",
    ),
    Mutation(
        "mean-over-other-axes-is-a-pool", "qfunc.ops.reduction:_mean",
        "if sorted(dims) in ([2, 3], [-2, -1]):",
        "if len(dims) == 2:",
        ROAD, case="mean",
    ),
    # modules that compute otherwise in training
    Mutation(
        "own-norms-are-traced-in-training", "qfunc.frontend.mode_dependence:train",
        "            module.training = False",
        "            pass",
        "tests/frontend/test_mode_dependence.py::test_evaluation_is_the_model_s",
    ),
    Mutation(
        "own-norms-stay-calls", "qfunc.frontend.capture:_traced",
        "    norms_as_modules(evaluated, owned)",
        "    pass",
        "tests/frontend/test_mode_dependence.py::test_training_is_the_model_s",
    ),
    Mutation(
        "what-a-norm-holds-beside-is-lost", "qfunc.frontend.mode_dependence:_plain_norm",
        "return with_missing_members(norm_copy, norm)",
        "return norm_copy",
        "tests/frontend/test_mode_dependence.py::test_evaluation_is_the_model_s",
    ),
    Mutation(
        "what-drops-keeps-the-mode-of-tracing", "qfunc.frontend.mode_dependence:take_modes",
        "copied.inner.training = module.training",
        "pass",
        "tests/frontend/test_mode_dependence.py::test_the_model_is_not_changed_and_modes_are_kept",
    ),
    Mutation(
        "what-follows-from-a-written-tensor-stays", "qfunc.frontend.export.constant_writes:fold_constant_writes",
        "if any(n in written for n in node.all_input_nodes if _name(node) not in _LIKE):",
        "if False:",
        "tests/frontend/test_constant_writes.py::test_the_graph_computes_what_the_model_does",
    ),
    Mutation(
        "operands-in-one-order", "qfunc.graph.patterns:OpPattern.orders",
        "return (self.operands, ((second, a), (first, b), *rest))",
        "return (self.operands,)",
        "tests/graph/test_matcher.py::test_a_match_binds_its_names",
    ),
    Mutation(
        "one-name-of-two-nodes", "qfunc.graph.patterns:same",
        "        return a is b",
        "        return True",
        "tests/graph/test_matcher.py::test_a_near_miss_has_the_reason_of_the_attempt_that_came_furthest",
    ),
    Mutation(
        "the-first-failure-is-the-reason", "qfunc.graph.matcher:_Attempt.is_further",
        "return self.furthest is None or state.extent > self.furthest.reached.extent",
        "return self.furthest is None",
        "tests/graph/test_matcher.py::test_only_misses_that_reached_the_characteristic_op_are_listed_once_each",
    ),
    Mutation(
        "near-misses-of-what-was-rewritten", "qfunc.graph.matcher:_best_misses",
        "if changed.isdisjoint(miss.reached.nodes) and",
        "if",
        "tests/graph/test_matcher.py::test_only_misses_that_reached_the_characteristic_op_are_listed_once_each",
    ),
    Mutation(
        "silu-of-another-number", "qfunc.passes.fuse_activations:_DIVISOR",
        "key=True), 1, commutative=True)",
        "key=True), 2, commutative=True)",
        "tests/passes/test_fuse_activations.py::test_it_is_one_op_with_the_same_values",
    ),
    Mutation(
        "a-size-stays-before-the-norm", "qfunc.frontend.sizes_of_results:_same_shape",
        "return reader if not others and (alone or has(reader, Trait.NORM)) else None",
        "return reader if not others and alone else None",
        "tests/frontend/test_sizes_of_results.py::test_both_ways_to_capture_give_the_same_codes", case="norm_folds-litert",
    ),
    Mutation(
        "calls-of-captured-models-share-a-code-object", "qfunc.graph.module:CapturedModule.__init_subclass__",
        "cls.__call__ = own",
        "pass",
        "tests/graph/test_compiled_blocks.py::test_each_block_of_a_deep_network_compiles[deepcopy]",
    ),
)  # fmt: skip
