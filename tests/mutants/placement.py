"""Breakages of fusion, placement and units."""

from mutants.mutation import Mutation

PLACEMENT = (
    # fusion
    Mutation(
        "fuse-before-the-other-input", "qfunc.placement.fusion:_can_join",
        "return not twice and all(order[n] < root for n in others)",
        "return not twice",
        "tests/placement/test_place_mutants.py::test_the_later_conv_absorbs_the_add",
    ),
    Mutation(
        "fuse-a-tensor-with-itself", "qfunc.placement.fusion:_can_join",
        "return not twice and all(",
        "return all(",
        "tests/placement/test_place_mutants.py::test_a_sum_of_one_tensor_is_no_residual",
    ),
    Mutation(
        "fuse-what-others-read", "qfunc.placement.fusion:_match_chain",
        "if matching and len(users) > 1:",
        "if False:",
        "tests/placement/test_place_mutants.py::test_what_is_read_twice_is_not_fused_away",
    ),
    # placement
    Mutation(
        "weight-axis-zero", "qfunc.placement.place:_Placement._edge",
        "value = with_axis(value, self.context.channel_axis(node)",
        "value = with_axis(value, 0",
        "tests/placement/test_place_mutants.py::test_weights_are_scaled_along_their_output_channels",
    ),
    Mutation(
        "channel-axis-of-matmul", "qfunc.ops.linear:ROWS",
        "weight_axis=-1",
        "weight_axis=0",
        "tests/placement/test_place_mutants.py::test_weights_are_scaled_along_their_output_channels",
    ),
    Mutation(
        "bias-without-an-input-scale", "qfunc.placement.place:_Placement._quantized_product",
        "or given is None or given.site.dynamic or given.site.by_channel:",
        "or (given is not None and (given.site.dynamic or given.site.by_channel)):",
        "tests/placement/test_place_mutants.py::test_a_bias_needs_both_scales",
    ),
    Mutation(
        "a-size-is-a-reader-of-codes", "qfunc.placement.place:_Placement._readers_agree",
        "alone = all(len(self._tensor_readers(n)) == 1 for n in chain[1:])",
        "alone = all(len(n.users) == 1 for n in chain[1:])",
        "tests/frontend/test_sizes_of_results.py::test_both_ways_to_capture_give_the_same_codes", case="input_is_pooled-litert",
    ),
    Mutation(
        "two-quantizers-in-series", "qfunc.placement.place:_Placement._edge",
        "existing = self.of_tensor.get(source)",
        "existing = None",
        "tests/placement/test_place_mutants.py::test_no_two_quantizers_stand_in_series",
    ),
    Mutation(
        "skip-falls-through", "qfunc.placement.rules:GroupRules.first",
        "if getattr(rule, slot) is None or not self.applies(index, group):",
        'if type(getattr(rule, slot)).__name__ in ("NoneType", "KeepFloat") or not self.applies(index, group):',
        "tests/transforms/test_quantize.py::test_skip_leaves_an_op_in_float",
    ),
    Mutation(
        "quantizer-inside-a-group", "qfunc.placement.place:_Placement._inputs",
        "if producer in group.nodes or _is_number(producer) or",
        "if _is_number(producer) or",
        "tests/placement/test_place_mutants.py::test_nothing_is_quantized_inside_a_unit",
    ),
    Mutation(
        "number-taken-for-a-tensor", "qfunc.placement.place:_is_number",
        "any(isinstance(default, int | float) for default in node.args)",
        "False",
        "tests/transforms/test_quantize.py::test_an_optional_number_is_no_activation",
    ),
    Mutation(
        "override-of-any-role", "qfunc.placement.rules:algorithm",
        "if change.role == role and any(",
        "if any(",
        "tests/transforms/test_quantize.py::test_override_narrows_the_weights_it_names",
    ),
    Mutation(
        "pads-move-codes", "qfunc.graph.data_movement:only_moves_codes",
        'return attribute(node, "mode") != "constant" or not attribute(node, "value")',
        "return True",
        "tests/placement/test_place_mutants.py::test_a_pad_by_a_value_outside_the_range_has_its_own_qparams",
    ),
    Mutation(
        "negative-clips-count-as-positive", "qfunc.graph.selectors:_conditions",
        '(attribute(node, "min") or -1) >= 0',
        '(attribute(node, "min") or 1) >= -1',
        "tests/placement/test_place_mutants.py::test_what_has_no_negative_value_is_known_from_the_graph",
    ),
    # units
    Mutation(
        "bounds-inside-the-codes", "qfunc.numerics.affine:implies_clamp",
        "return below and (high is None or bool((code(high) >= ends[1]).all()))",
        "return below",
        "tests/placement/test_place_mutants.py::test_both_bounds_of_a_clip_must_lie_at_the_ends_of_the_codes",
    ),
    Mutation(
        "encodings-of-one-format-are-the-same", "qfunc.placement.encoding:Encoding.same",
        "return same_format and _equal(self.qparams, other.qparams)",
        "return same_format",
        "tests/placement/test_place_mutants.py::test_codes_are_copied_between_equal_qparams_only",
    ),
    Mutation(
        "kernel-takes-any-format", "qfunc.placement.kernels:_fits",
        "return fmt in wanted",
        "return True",
        "tests/placement/test_place_mutants.py::test_a_kernel_takes_its_own_formats_only",
    ),
    Mutation(
        "float-bias-in-an-integer-kernel", "qfunc.placement.kernels:integer_kernel",
        "elif float_bias and not takes_float_bias(kernel.arithmetic):",
        "elif False:",
        "tests/conformance/test_skips.py::test_a_unit_left_float_stays_float",
    ),
    Mutation(
        "fused-though-the-bound-is-inside", "qfunc.placement.kernels:integer_kernel",
        "conditions = (*kernel.integer_if, *(",
        "conditions = (*kernel.integer_if, *(() and ",
        "tests/placement/test_place_mutants.py::test_a_relu_inside_the_codes_makes_a_float_unit",
    ),
)  # fmt: skip
