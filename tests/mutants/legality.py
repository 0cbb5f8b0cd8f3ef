"""Breakages of legality: what the hardware refuses, and the opset of an artifact."""

from mutants.mutation import Mutation

SPEC, CHECK = "specs/legality.py", "qfunc/graph/legality.py"
QDQ, GRAPH = "qfunc/lowering/qdq.py", "qfunc/lowering/onnx_graph.py"
SPECS, TESTS, OPSETS = "tests/specs/test_specs_legality.py", "tests/graph/test_legality.py", "tests/lowering/test_opsets.py"
FEASIBLE, SCALES, WINDOWS = (
    "qfunc/graph/feasible.py",
    "tests/graph/test_granularities.py",
    "tests/graph/test_legality_of_windows.py",
)
CHIPS, FILES = "tests/graph/test_legality_of_chips.py", "tests/graph/test_legality_of_files.py"
WRITERS = "tests/graph/test_legality_of_writers.py"
EDITS = "tests/specs/test_specs_edit.py"
HAS = f"{FILES}::test_what_an_opset_has"

LEGALITY = (
    Mutation("nothing-required", SPEC, "and self.zero_point is None:", "and False:", SPECS),
    Mutation("contradictions-are-selectors", SPEC, "any(_exclude(a, b) for a, b in combinations(of, 2))", "False", SPECS),
    Mutation(
        "no-check-at-quantize", "qfunc/transforms/quantize.py",
        "require_legal(placement.plan, target)",
        "placement.plan.placed",
        f"{CHIPS}::test_a_zero_point_on_tensorrt",
    ),
    Mutation(
        "activations-may-use-fewer-codes", CHECK,
        "if not fewer or not isinstance(wanted, Int)",
        "if not isinstance(wanted, Int)",
        f"{TESTS}::test_constants_may_use_fewer_codes_and_activations_may_not",
    ),
    Mutation(
        "signs-do-not-count", CHECK,
        "return wanted.signed == fmt.signed and wanted.qmin",
        "return wanted.qmin",
        f"{TESTS}::test_constants_may_use_fewer_codes_and_activations_may_not",
    ),
    Mutation(
        "skipped-ops-are-asked", CHECK,
        "        if self._kept(group, slot):",
        "        if False:",
        f"{TESTS}::test_an_op_left_in_float_is_not_asked_though_its_input_has_codes",
    ),
    Mutation(
        "half-a-skip-moves-an-op", CHECK,
        'self._kept(group, "input") and self._kept(group, "output")',
        'self._kept(group, "input")',
        f"{TESTS}::test_keeping_only_the_input_in_float_does_not_move_the_op",
    ),
    Mutation(
        "readers-behind-moves-are-forgotten", CHECK,
        "reader, tensor = tensor, inputs[0]",
        "return None",
        f"{TESTS}::test_a_tensor_is_told_once_and_a_reader_behind_moves_counts",
    ),
    Mutation(
        "a-tensor-is-told-again", CHECK,
        "(breach.tensor or breach.op, breach.found, breach.wanted)",
        "(breach.place, breach.found, breach.wanted)",
        f"{TESTS}::test_a_tensor_is_told_once_and_a_reader_behind_moves_counts",
    ),
    Mutation(
        "a-zero-point-of-0-counts", CHECK,
        "zero_point is None or zero_point.value == 0 or",
        "zero_point is None or",
        f"{TESTS}::test_a_zero_point_that_is_always_0_is_none",
    ),
    Mutation(
        "any-axis-is-the-channels", CHECK,
        'axis if g.axis == "channel" else int(g.axis)',
        "0",
        f"{TESTS}::test_scales_per_channel_are_those_of_the_output_channels",
    ),
    Mutation(
        "blocks-of-any-size", CHECK,
        "return sizes and len(",
        "return len(",
        f"{TESTS}::test_blocks_have_an_axis_and_a_size",
    ),
    Mutation(
        "unsigned-codes-lose-their-negatives", "specs/_rewrite.py",
        "fmt if self.signed is not None else around_zero(fmt), None",
        "fmt, None",
        f"{EDITS}::test_symmetric_codes_are_signed_unless_the_edit_says_otherwise",
    ),
    Mutation(
        "edits-of-nothing-are-silent", "specs/_rewrite.py",
        "            if asked is not None and not any(_takes(asked, name, s.format) for s in schemes):",
        "            if False:",
        f"{EDITS}::test_a_property_that_no_scheme_has_is_refused",
    ),
    Mutation(
        "narrower-constants-always", CHECK,
        "site.constant and rule.narrower",
        "site.constant",
        f"{TESTS}::test_narrower_codes_may_be_refused_of_constants_too",
    ),
    Mutation(
        "chips-are-asked-for-sizes", CHECK,
        "        if _counts(node):",
        "        if False:",
        f"{CHIPS}::test_nnie_runs_what_caffe_has",
    ),
    Mutation(
        "nnie-runs-gelu", "targets/nnie.py",
        '"softplus", "sigmoid"',
        '"softplus", "gelu", "sigmoid"',
        f"{CHIPS}::test_nnie_refuses_every_other_op",
    ),
    Mutation("four-bits-in-every-opset", QDQ, "if stored not in (8, 32)", "if stored not in (4, 8, 32)", HAS),
    Mutation("constants-are-stored-as-they-are", QDQ, "if bits == 4 and not constant else", "if bits == 4 else", HAS),
    Mutation(
        "always-the-latest-opset", GRAPH,
        'domains = {"": self.opset,',
        'domains = {"": OPSET,',
        f"{OPSETS}::test_the_artifact_has_the_opset_that_the_lowering_names",
    ),
    Mutation(
        "functions-keep-their-opset", GRAPH,
        "used.version = min(used.version, self.opset)",
        "used.version = used.version",
        f"{OPSETS}::test_functions_of_the_model_follow_its_opset",
    ),
    Mutation(
        "ops-of-any-opset", GRAPH,
        "_SINCE.get(op, 0)",
        "0",
        f"{OPSETS}::test_an_op_later_than_the_opset_is_refused_by_name",
    ),
    Mutation(
        "mean-of-opset-18", "qfunc/lowering/onnx_ops.py",
        'if op == "ReduceMean" and c.graph.opset < 18:',
        'if op == "ReduceMean" and c.graph.opset < 13:',
        f"{OPSETS}::test_the_artifact_has_the_opset_that_the_lowering_names",
    ),
    Mutation(
        "static-scales-a-token", FEASIBLE,
        "isinstance(shared, PerToken | PerBlock) and not site.dynamic",
        "False",
        f"{SCALES}::test_static_scales_of_what_has_no_fixed_number_of_them",
    ),
    Mutation(
        "dynamic-scales-are-written", FEASIBLE,
        "return isinstance(shared, PerTensor | PerChannel) and not site.dynamic",
        "return isinstance(shared, PerTensor | PerChannel)",
        f"{FILES}::test_what_a_chip_holds_and_no_file_is_written_with",
    ),
    Mutation(
        "sums-of-different-scales", "qfunc/graph/units.py",
        "if not all(weight is None or weight.of_outputs(",
        "if not all(weight is None or True or weight.of_outputs(",
        f"{SCALES}::test_weights_with_scales_along_the_inputs_are_summed_in_float",
    ),
    Mutation(
        "biases-of-dynamic-scales", "qfunc/graph/plan.py",
        "or given.site.dynamic or",
        "or",
        f"{SCALES}::test_biases_stay_float_behind_scales_that_are_found_at_run_time",
    ),
    Mutation(
        "every-window-fits", "targets/nnie.py",
        'Attr("ceil_mode", False) & ~DENSE',
        'Attr("ceil_mode", None) & ~DENSE',
        f"{WINDOWS}::test_pools_of_nnie_round_sizes_up",
    ),
    Mutation(
        "lowerings-are-not-asked", CHECK,
        '(getattr(lowering, "legality", ()),',
        "((),",
        f"{WRITERS}::test_an_op_that_a_lowering_cannot_write",
    ),
    Mutation(
        "together-asks-none", "qfunc/lowering/together.py",
        'getattr(one, "legality", ())',
        "()",
        f"{WRITERS}::test_several_lowerings_refuse_what_any_does",
    ),
    Mutation(
        "ncnn-refuses-any-step", "qfunc/lowering/ncnn_legality.py",
        "second.step not in (None, 1)",
        "True",
        f"{WRITERS}::test_slices_that_ncnn_writes",
    ),
    Mutation(
        "tosa-repeats-by-halves", "qfunc/lowering/tosa_legality.py",
        "f % 1 for f",
        "f % 0.5 for f",
        f"{WRITERS}::test_an_op_that_a_lowering_cannot_write",
    ),
    Mutation(
        "tosa-cuts-a-whole-window", "qfunc/lowering/tosa_legality.py",
        "p >= k for p, k",
        "p > k for p, k",
        f"{WRITERS}::test_an_op_that_a_lowering_cannot_write",
    ),
)  # fmt: skip
