"""Breakages of legality: what the hardware refuses, and the opset of an artifact."""

from mutants.mutation import Mutation

SPECS = "tests/specs/test_specs_legality.py"
SIZES = "tests/placement/test_size_limits.py"
HAS = "tests/placement/test_feasibility.py::test_what_an_opset_has"

LEGALITY = (
    Mutation(
        "nothing-required", "qfunc.specs.legality:Require.__attrs_post_init__",
        "and self.zero_point is None:",
        "and False:",
        SPECS,
    ),
    Mutation(
        "contradictions-are-selectors", "qfunc.specs.legality:never_an_op",
        "any(_exclude(a, b) for a, b in combinations(of, 2))",
        "False",
        SPECS,
    ),
    Mutation(
        "no-check-at-quantize", "qfunc.transforms.insert_quantizers:simulation",
        "require_legal(placement.plan, target)",
        "placement.plan.placed",
        "tests/placement/test_constraints_of_chips.py::test_a_zero_point_on_tensorrt",
    ),
    Mutation(
        "activations-may-use-fewer-codes", "qfunc.placement.legality.constraints:_fits",
        "if not narrower or not isinstance(wanted, Int)",
        "if not isinstance(wanted, Int)",
        "tests/placement/test_constraints.py::test_constants_may_use_fewer_codes_and_activations_may_not",
    ),
    Mutation(
        "signs-do-not-count", "qfunc.placement.legality.constraints:_fits",
        "return wanted.signed == fmt.signed and wanted.qmin",
        "return wanted.qmin",
        "tests/placement/test_constraints.py::test_constants_may_use_fewer_codes_and_activations_may_not",
    ),
    Mutation(
        "skipped-ops-are-asked", "qfunc.placement.legality.constraints:_Check.tensor",
        "        if self.rules.keep_float(group, slot):",
        "        if False:",
        "tests/placement/test_constraints.py::test_an_op_left_in_float_is_not_asked_though_its_input_has_codes",
    ),
    Mutation(
        "half-a-skip-moves-an-op", "qfunc.placement.legality.constraints:_Check._refused",
        'self.rules.keep_float(group, "input") and self.rules.keep_float(group, "output")',
        'self.rules.keep_float(group, "input")',
        "tests/placement/test_constraints.py::test_keeping_only_the_input_in_float_does_not_move_the_op",
    ),
    Mutation(
        "readers-behind-moves-are-forgotten", "qfunc.placement.legality.constraints:_Check.read_by",
        "reader, tensor = tensor, inputs[0]",
        "return None",
        "tests/placement/test_constraints.py::test_a_tensor_is_told_once_and_a_reader_behind_moves_counts",
    ),
    Mutation(
        "a-tensor-is-told-again", "qfunc.placement.legality.violation:without_repetitions",
        "(violation.tensor or violation.op, violation.found, violation.wanted)",
        "(violation.place, violation.found, violation.wanted)",
        "tests/placement/test_constraints.py::test_a_tensor_is_told_once_and_a_reader_behind_moves_counts",
    ),
    Mutation(
        "a-zero-point-of-0-counts", "qfunc.placement.legality.constraints:_violated",
        "zero_point is None or zero_point.value == 0 or",
        "zero_point is None or",
        "tests/placement/test_constraints.py::test_a_zero_point_that_is_always_0_is_none",
    ),
    Mutation(
        "any-axis-is-the-channels", "qfunc.placement.legality.constraints:_same",
        'axis if g.axis == "channel" else int(g.axis)',
        "0",
        "tests/placement/test_constraints.py::test_scales_per_channel_are_those_of_the_output_channels",
    ),
    Mutation(
        "blocks-of-any-size", "qfunc.placement.legality.constraints:_same",
        "return same_size and len(",
        "return len(",
        "tests/placement/test_constraints.py::test_blocks_have_an_axis_and_a_size",
    ),
    Mutation(
        "unsigned-codes-lose-their-negatives", "qfunc.specs.edit._rewrites:SchemeChange.__call__",
        "fmt if self.signed is not None else around_zero(fmt), None",
        "fmt, None",
        "tests/specs/test_specs_edit.py::test_symmetric_codes_are_signed_unless_the_edit_says_otherwise",
    ),
    Mutation(
        "edits-of-nothing-are-silent", "qfunc.specs.edit._rewrites:ChangeSlots.__call__",
        "            if asked is not None and not any(_takes(asked, name, s.format) for s in schemes):",
        "            if False:",
        "tests/specs/test_specs_edit.py::test_a_property_that_no_scheme_has_is_refused",
    ),
    Mutation(
        "narrower-constants-always", "qfunc.placement.legality.constraints:_violated",
        "site.constant and rule.narrower",
        "site.constant",
        "tests/placement/test_constraints.py::test_narrower_codes_may_be_refused_of_constants_too",
    ),
    Mutation(
        "chips-are-asked-for-sizes", "qfunc.placement.legality.constraints:_Check.op",
        "if node in self.sizes or isinstance(node.target, type)",
        "if isinstance(node.target, type)",
        "tests/placement/test_constraints_of_chips.py::test_nnie_runs_what_caffe_has",
    ),
    Mutation(
        "nnie-runs-gelu", "qfunc.targets.nnie.target:RUN",
        '"softplus", "sigmoid"',
        '"softplus", "gelu", "sigmoid"',
        "tests/placement/test_constraints_of_chips.py::test_nnie_refuses_every_other_op",
    ),
    Mutation(
        "four-bits-in-every-opset", "qfunc.placement.legality.stored_schemes:_needs",
        "if stored not in (8, 32)",
        "if stored not in (4, 8, 32)",
        HAS,
    ),
    Mutation(
        "constants-are-stored-as-they-are", "qfunc.placement.legality.stored_schemes:_needs",
        "if bits == 4 and not constant else",
        "if bits == 4 else",
        HAS,
    ),
    Mutation(
        "always-the-latest-opset", "qfunc.lowering.onnx.builder:GraphBuilder.model",
        'domains = {"": self.opset,',
        'domains = {"": OPSET,',
        "tests/lowering/onnx/test_opsets.py::test_the_artifact_has_the_opset_that_the_lowering_names",
    ),
    Mutation(
        "functions-keep-their-opset", "qfunc.lowering.onnx.builder:GraphBuilder.call",
        "used.version = min(used.version, self.opset)",
        "used.version = used.version",
        "tests/lowering/onnx/test_opsets.py::test_functions_of_the_model_follow_its_opset",
    ),
    Mutation(
        "ops-of-any-opset", "qfunc.lowering.onnx.builder:GraphBuilder.node",
        "_SINCE.get(op, 0)",
        "0",
        "tests/lowering/onnx/test_opsets.py::test_an_op_later_than_the_opset_is_refused_by_name",
    ),
    Mutation(
        "mean-of-opset-18", "qfunc.lowering.onnx.reduction:reduced",
        "c.graph.opset < 18 and",
        "c.graph.opset < 13 and",
        "tests/lowering/onnx/test_opsets.py::test_the_artifact_has_the_opset_that_the_lowering_names",
    ),
    Mutation(
        "static-scales-a-token", "qfunc.placement.legality.feasibility:_activation_errors",
        "isinstance(shared, PerToken | PerBlock) and not site.dynamic",
        "False",
        "tests/placement/test_granularities.py::test_static_scales_of_what_has_no_fixed_number_of_them",
    ),
    Mutation(
        "dynamic-scales-are-written", "qfunc.placement.legality.feasibility:can_be_written",
        "if site.dynamic or (",
        "if (",
        "tests/placement/test_feasibility.py::test_what_a_chip_holds_and_no_file_is_written_with",
    ),
    Mutation(
        "wide-biases-are-written", "qfunc.placement.legality.feasibility:_widest",
        'if site.slot == "bias" else 32',
        'if site.slot == "bias" else 64',
        "tests/placement/test_feasibility.py::test_biases_wider_than_every_file",
    ),
    Mutation(
        "sums-of-different-scales", "qfunc.placement.kernels:integer_kernel",
        "by_outputs = all(weight is None or weight.of_outputs(",
        "by_outputs = all(weight is None or True or weight.of_outputs(",
        "tests/placement/test_granularities.py::test_weights_with_scales_along_the_inputs_are_summed_in_float",
    ),
    Mutation(
        "biases-of-dynamic-scales", "qfunc.placement.place:_Placement._quantized_product",
        "or given.site.dynamic or",
        "or",
        "tests/placement/test_granularities.py::test_biases_stay_float_behind_scales_that_are_found_at_run_time",
    ),
    Mutation(
        "every-window-fits", "qfunc.targets.nnie.target:nnie",
        'Attr("ceil_mode", False) & ~DENSE',
        'Attr("ceil_mode", None) & ~DENSE',
        "tests/placement/test_constraints_of_windows.py::test_pools_of_nnie_round_sizes_up",
    ),
    Mutation(
        "lowerings-are-not-asked", "qfunc.placement.legality.constraints:_Check._refused",
        "limits = format_of(lowering).legality",
        "limits = ()",
        "tests/placement/test_constraints_of_lowerings.py::test_an_op_that_a_lowering_cannot_write",
    ),
    Mutation(
        "together-asks-none", "qfunc.lowering.combination:Combined.format",
        "for refuse in one.legality",
        "for refuse in ()",
        "tests/placement/test_constraints_of_lowerings.py::test_several_lowerings_refuse_what_any_does",
    ),
    Mutation(
        "tosa-cuts-a-whole-window", "qfunc.targets.tosa.constraints:padding_reaches_window",
        "p >= k for p, k",
        "p > k for p, k",
        "tests/placement/test_constraints_of_lowerings.py::test_an_op_that_a_lowering_cannot_write",
    ),
    Mutation(
        "batches-are-elements", "qfunc.placement.legality.sizes:_requirement",
        "math.prod(shape if constant else shape[1:])",
        "math.prod(shape)",
        SIZES,
    ),
    Mutation(
        "negative-axes-reach-the-batch", "qfunc.placement.legality.sizes:_requirement",
        "first = 0 if constant else 1",
        "first = 0",
        SIZES,
    ),
    Mutation(
        "examples-have-no-sizes", "qfunc.transforms.quantize:_require_sizes",
        "if example_inputs is None or not limits_sizes(target):",
        "if True:",
        SIZES,
    ),
    Mutation(
        "batches-have-no-sizes", "qfunc.transforms.calibrate:_read",
        "if targets:",
        "if False:",
        SIZES,
    ),
    Mutation(
        "skipped-ops-have-sizes", "qfunc.placement.legality.sizes:wrong_sizes",
        'if rules.keep_float(group, "input") and rules.keep_float(group, "output"):',
        "if False:",
        SIZES,
    ),
)  # fmt: skip
