"""Breakages of the lowerings to NNIE, Vitis AI, OpenVINO, TVM, Tengine and LiteRT, caught without them."""

from mutants.mutation import Mutation

REWRITES = "tests/lowering/openvino_cpu/test_openvino_rewrites.py::test_the_runtime_computes_the_codes_of_the_emulation"

LOWERINGS_RUNTIMES = (
    Mutation(
        "nnie-clip-is-an-octave-step-off", "qfunc.lowering.toolchains.nnie:clip",
        "+ site.high) / 16))",
        "+ site.high + 1) / 16))",
        "tests/lowering/toolchains/test_nnie.py::test_the_vendor_finds_the_simulation_s_z_of_every_tensor",
    ),
    Mutation(
        "nnie-groups-have-entries", "qfunc.targets.nnie:nnie",
        'Rule(CONVS & ~Attr("groups", 1), input=KeepFloat(), weight=KeepFloat()),',
        "",
        "tests/lowering/toolchains/test_nnie.py::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "nnie-permute-counts-from-one", "qfunc.lowering.toolchains.nnie_table:entries",
        "_permute_{upsamples}",
        "_permute_{upsamples + 1}",
        "tests/lowering/toolchains/test_nnie.py::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "nnie-resize-stays", "qfunc.lowering.toolchains.nnie_table:upsample",
        'node.op_type, node.domain = "Upsample", "qfunc"',
        'node.op_type, node.domain = "Resize", ""',
        "tests/lowering/toolchains/test_nnie.py::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "vitis-takes-any-scale", "qfunc.lowering.toolchains.vitis:_require",
        "math.frexp(scale)[0] == 0.5",
        "scale > 0",
        "tests/lowering/toolchains/test_vitis_files.py::test_what_the_dpu_cannot_say_is_refused_by_name",
    ),
    Mutation(
        "vitis-without-weights", "qfunc.lowering.toolchains.vitis:VitisLowering.lower",
        "in by_tensor(proto, sites).items()}",
        'in by_tensor(proto, sites).items() if site.role == "activation"}',
        "tests/lowering/toolchains/test_vitis_files.py::test_every_tensor_has_a_fix_position",
    ),
    Mutation(
        "openvino-biases-of-zero", "qfunc.lowering.openvino.rewrites:_add_biases",
        "np.full(count, _SMALLEST_BIAS)",
        "np.zeros(count, np.float32)",
        REWRITES,
    ),
    Mutation(
        "openvino-wraps-at-the-wrong-end", "qfunc.lowering.openvino.rewrites:_replace_wrapping_pads",
        "[(-before, _LAST)]",
        "[(0, before)]",
        REWRITES,
    ),
    Mutation(
        "openvino-levels-of-narrow-weights", "qfunc.lowering.openvino.nodes:_range",
        "high - low + 1 < 255:",
        "high - low + 1 == 0:",
        "tests/lowering/openvino_cpu/test_openvino_lowering.py::test_weights_of_fewer_levels_keep_their_step",
    ),
    Mutation(
        "openvino-ranges-along-the-first-axis", "qfunc.lowering.openvino.nodes:_node",
        "i == (site.axis or 0) % rank else 1",
        "i == 0 else 1",
        "tests/lowering/openvino_cpu/test_openvino_lowering.py::test_transposed_convolutions_have_ranges_along_their_second_axis",
    ),
    Mutation(
        "openvino-forgets-zero-points", "qfunc.lowering.openvino.nodes:_range",
        "top = scale * (high - zero)",
        "top = scale * high",
        "tests/lowering/openvino_cpu/test_openvino_lowering.py::test_ranges_of_zero_points",
    ),
    Mutation(
        "tvm-drops-every-clamp", "qfunc.lowering.qlinear.rewrite:_Rewrite._result",
        "return result if all(self._is_implied(clamp, quantizer) for clamp in clamps) else None",
        "return result",
        "tests/lowering/qlinear/test_qlinear.py::test_a_clamp_within_the_codes_stays",
    ),
    Mutation(
        "tvm-moves-whatever-the-qparams", "qfunc.lowering.qlinear.rewrite:_Rewrite._move",
        "any(r is None or not self._same_qparams(source, r) for r in results)",
        "any(r is None for r in results)",
        "tests/lowering/qlinear/test_qlinear.py::test_moves_with_other_qparams_stay",
    ),
    Mutation(
        "tvm-linear-layers-in-float", "qfunc.lowering.qlinear.ops:WRITERS",
        '"Gemm": _gemm, ',
        "",
        "tests/lowering/qlinear/test_qlinear.py::test_every_op_is_on_codes_and_every_code_is_the_emulation_s",
    ),
    Mutation(
        "tvm-any-bias-scale", "qfunc.lowering.qlinear.rewrite:_Rewrite._has_product_scale",
        "return bool(np.all(constants[b.scale] == product) and not constants[b.zero_point].any())",
        "return True",
        "tests/lowering/qlinear/test_qlinear.py::test_a_bias_of_another_scale_keeps_its_convolution_in_float",
    ),
    Mutation(
        "tengine-relu-by-mqbench-s-name", "qfunc.lowering.toolchains.tengine:_clamps",
        'return bool(node.op_type == "Relu")',
        'return bool(node.op_type == "ReLU")',
        "tests/lowering/toolchains/test_tengine.py::test_every_activation_has_a_line_and_so_has_a_convolution_before_a_relu",
    ),
    Mutation(
        "tengine-any-clip-is-relu6", "qfunc.lowering.toolchains.tengine:_clamps",
        "return len(bounds) == 2 and bool(np.array_equal(bounds, [0, 6]))",
        "return len(bounds) == 2",
        "tests/lowering/toolchains/test_tengine.py::test_the_rule_is_for_relu_and_relu6_alone",
    ),
    Mutation(
        "tengine-names-with-spaces", "qfunc.lowering.toolchains.tengine:_require",
        "if any(c.isspace() for c in t)]",
        "if not t]",
        "tests/lowering/toolchains/test_tengine.py::test_what_tengine_cannot_say_is_refused_by_name",
    ),
    Mutation(
        "packed-takes-eight-bits", "qfunc.lowering.onnx.int4:packed",
        "or fmt.bits > BITS:",
        "or fmt.bits > 8:",
        "tests/lowering/onnx/test_int4.py::test_eight_bits_stay_as_they_are",
    ),
    Mutation(
        "packed-forgets-the-sign", "qfunc.lowering.onnx.int4:packed",
        "storage(Int(BITS, fmt.signed), site.name)",
        "storage(Int(BITS), site.name)",
        "tests/lowering/onnx/test_int4.py::test_packed_weights_are_the_same_numbers",
    ),
    Mutation(
        "litert-celu-of-one-rate", "qfunc.lowering.nhwc.decompositions:celu",
        '_number(step, "rate", 1 / alpha)',
        '_number(step, "rate", 1.0)',
        "tests/lowering/tflite/test_decompositions.py::test_celu_is_within_four_roundings_of_alpha",
    ),
    Mutation(
        "litert-averages-padding-of-ceil", "qfunc.numerics.kernels.activations:average_inside",
        ".round() if pads else inside",
        ".round() if pads and not ceil_mode else inside",
        "tests/lowering/test_composed_ops.py::test_pools_with_borders_and_grouped_transposed_convolutions_are_exact",
    ),
    Mutation(
        "litert-groups-share-neighbours", "qfunc.placement.products:products_of",
        'scale.repeat(attribute(root, "groups"))',
        'scale.repeat_interleave(attribute(root, "groups"))',
        "tests/lowering/test_composed_ops.py::test_pools_with_borders_and_grouped_transposed_convolutions_are_exact",
    ),
    Mutation(
        "litert-wraps-as-edges", "qfunc.lowering.nhwc.moves:_continued",
        "places % length if wraps else",
        "places % length if not wraps else",
        "tests/lowering/test_composed_ops.py::test_composed_ops_are_those_of_torch",
    ),
    Mutation(
        "litert-any-slope-in-the-delegate", "qfunc.emulation.activations:bits",
        "least <= abs(float(s)) <= _LARGEST_MULTIPLIER",
        "abs(float(s)) <= _LARGEST_MULTIPLIER",
        "tests/lowering/tflite/test_litert_extremes.py::test_a_slope_that_the_delegate_leaves_to_the_optimised_kernel",
    ),
    Mutation(
        "litert-bounds-to-even", "qfunc.lowering.tflite.builder:TfliteBuilder.bound_code",
        "math.copysign(math.floor(abs(steps) + 0.5), steps)",
        "round(steps)",
        "tests/lowering/test_composed_ops.py::test_a_bound_between_two_codes_is_rounded_as_the_kernel_rounds_it",
    ),
    Mutation(
        "examples-joined-outside", "qfunc.execution.joined_examples:_orders",
        "torch.stack(parts, axis + 1)",
        "torch.stack(parts, axis)",
        "tests/lowering/test_rare_forms.py::test_examples_inside_of_a_merged_axis_are_compared_in_the_order_of_the_model",
    ),
    Mutation(
        "litert-celu-bends-above-one", "qfunc.lowering.nhwc.decompositions:celu",
        '_number(step, "zero", 0.0)',
        '_number(step, "zero", 1.0)',
        "tests/lowering/tflite/test_decompositions.py::test_celu_is_within_four_roundings_of_alpha",
    ),
    Mutation(
        "onnxruntime-halves-by-the-cubic-kernel", "qfunc.lowering.onnxruntime.cubic_resizes:_matrices",
        "scales.min() >= 1",
        "scales.min() >= 0",
        "tests/lowering/onnxruntime/test_cubic_resizes.py::test_the_runtime_loads_the_file_and_computes_the_emulations_codes",
    ),
    Mutation(
        "onnx-counts-the-window-behind-the-image", "qfunc.lowering.onnx.pooling:_pool",
        'attributes["ceil_mode"] = 0',
        "pass",
        "tests/lowering/onnx/test_rare_ops.py::test_the_runtime_computes_what_torch_does",
    ),
    Mutation(
        "sizes-read-codes", "qfunc.placement.place:_Placement._tensor_readers",
        'if self.context.kind(u) != "size"',
        "if True",
        "tests/frontend/test_computed_numbers.py::test_a_reader_of_sizes_is_no_reader_of_the_codes_that_ops_move",
    ),
    Mutation(
        "a-union-follows-one-input", "qfunc.placement.site_table:SiteTable.tie",
        'leader = "union" if "union" in {self._by_key[key].site.leader for key in keys} else leader',
        "pass",
        "tests/placement/test_unions.py::test_a_union_stays_one_where_an_op_after_it_takes_the_scale_of_its_input",
    ),
)  # fmt: skip
