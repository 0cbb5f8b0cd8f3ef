"""Breakages of the lowerings to NNIE, Vitis AI, OpenVINO, TVM, Tengine and LiteRT, caught without them."""

from mutants.mutation import Mutation

CONSTANTS = "tests/lowering/openvino_cpu/test_constants_of_channels.py::test_codes_of_arithmetic_with_constants_of_channels"
REWRITES = "tests/lowering/openvino_cpu/test_openvino_rewrites.py::test_the_runtime_computes_the_codes_of_the_emulation"

LOWERINGS_RUNTIMES = (
    Mutation(
        "nnie-clip-is-an-octave-step-off", "qfunc.targets.nnie.lowering:clip",
        "+ site.high) / 16))",
        "+ site.high + 1) / 16))",
        "tests/lowering/toolchains/test_nnie.py::test_the_vendor_finds_the_simulation_s_z_of_every_tensor",
    ),
    Mutation(
        "nnie-groups-have-entries", "qfunc.targets.nnie.target:nnie",
        'Rule(CONVS & ~Attr("groups", 1), input=KeepFloat(), weight=KeepFloat()),',
        "",
        "tests/lowering/toolchains/test_nnie.py::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "nnie-permute-counts-from-one", "qfunc.targets.nnie.table:entries",
        "_permute_{upsamples}",
        "_permute_{upsamples + 1}",
        "tests/lowering/toolchains/test_nnie.py::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "nnie-resize-stays", "qfunc.targets.nnie.table:upsample",
        'node.op_type, node.domain = "Upsample", "qfunc"',
        'node.op_type, node.domain = "Resize", ""',
        "tests/lowering/toolchains/test_nnie.py::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "vitis-takes-any-scale", "qfunc.targets.vitis.lowering:_require",
        "math.frexp(scale)[0] == 0.5",
        "scale > 0",
        "tests/lowering/toolchains/test_vitis_files.py::test_what_the_dpu_cannot_say_is_refused_by_name",
    ),
    Mutation(
        "vitis-without-weights", "qfunc.targets.vitis.lowering:VitisLowering.lower",
        "in by_tensor(proto, program.tensors).items()}",
        'in by_tensor(proto, program.tensors).items() if site.role == "activation"}',
        "tests/lowering/toolchains/test_vitis_files.py::test_every_tensor_has_a_fix_position",
    ),
    Mutation(
        "openvino-biases-of-zero", "qfunc.targets.openvino.rewrites:_add_biases",
        "np.full(count, SMALLEST_BIAS, np.float32)",
        "np.zeros(count, np.float32)",
        REWRITES,
    ),
    Mutation(
        "openvino-moves-scales-after-norms", "qfunc.targets.openvino.barriers:_protected",
        "return [0]\n    if node.op_type == \"AveragePool\"",
        "return []\n    if node.op_type == \"AveragePool\"",
        REWRITES,
    ),
    Mutation(
        "openvino-fuses-quantized-convolutions", "qfunc.targets.openvino.barriers:_protected",
        "return [] if False in found else [i for i, quantized in enumerate(found) if quantized]",
        "return []",
        "tests/lowering/openvino_cpu/test_constants_of_channels.py::test_the_quantizer_between_arithmetic_and_a_sum_stays",
    ),
    Mutation(
        "openvino-omits-constants-after-quantizers", "qfunc.targets.openvino.barriers:_beside_constants",
        "or _of_codes(source, value)",
        "",
        CONSTANTS,
    ),
    Mutation(
        "openvino-reads-other-constants-for-one-image", "qfunc.targets.openvino.barriers:_beside_constants",
        "alone or",
        "",
        CONSTANTS,
    ),
    Mutation(
        "openvino-adds-to-convolutions-before-arithmetic", "qfunc.targets.openvino.barriers:_convolution",
        "value = sizes.index(0)",
        "return None",
        "tests/lowering/openvino_cpu/test_constants_of_channels.py::test_the_quantizer_between_arithmetic_and_a_sum_stays",
    ),
    Mutation(
        "openvino-omits-unread-inputs", "qfunc.targets.openvino.runner:OpenVinoRunner.compiled",
        "core.read_model(path)",
        "core.read_model(model)",
        CONSTANTS,
    ),
    Mutation(
        "openvino-quantizers-have-no-bound-of-their-own", "qfunc.arithmetic.float_requantize:FloatRequantize.own_error",
        "2.0**-22 * levels",
        "0.0",
        "tests/lowering/openvino_cpu/test_openvino_ties.py::"
        "test_codes_that_a_quantizer_of_its_own_computes_are_within_its_bound",
    ),
    Mutation(
        "outputs-of-shown-codes-only", "qfunc.transforms.verification.check:Verification._emulate",
        "torch.where(outputs[index] == actual, actual.to(emulated.dtype), emulated)",
        "emulated",
        "tests/lowering/openvino_cpu/test_openvino_ties.py::"
        "test_codes_that_a_quantizer_of_its_own_computes_are_within_its_bound",
    ),
    Mutation(
        "openvino-fuses-functions-of-maxima", "qfunc.targets.openvino.barriers:_is_pooled",
        "reader.op_type in _NOT_INCREASING",
        "False",
        "tests/lowering/openvino_cpu/test_openvino_rewrites.py::test_functions_of_the_maxima_of_a_convolution",
    ),
    Mutation(
        "openvino-averages-count-what-is-after-the-padding", "qfunc.targets.openvino.pooling:_separate_padding",
        '_set_attribute(node, "count_include_pad", 0)',
        "return []",
        REWRITES,
    ),
    Mutation(
        "openvino-windows-beyond-the-image", "qfunc.targets.openvino.pooling:_fit",
        "min(kernel[i], size + pads[i] + pads[rank + i])",
        "kernel[i]",
        REWRITES,
    ),
    Mutation(
        "openvino-wraps-at-the-wrong-end", "qfunc.targets.openvino.rewrites:_replace_wrapping_pads",
        "[(-before, _LAST)]",
        "[(0, before)]",
        REWRITES,
    ),
    Mutation(
        "openvino-levels-of-narrow-weights", "qfunc.numerics.kernels.requantize:weight_codes",
        "high - low + 1 >= 255:",
        "high - low + 1 > 0:",
        "tests/lowering/openvino_cpu/test_openvino_lowering.py::test_weights_of_fewer_levels_keep_their_step",
    ),
    Mutation(
        "openvino-scales-along-the-first-axis", "qfunc.targets.openvino.nodes:_dequantized",
        "axis = (site.axis or 0) % value.ndim if channels else 0",
        "axis = 0",
        "tests/lowering/openvino_cpu/test_openvino_lowering.py::test_transposed_convolutions_have_ranges_along_their_second_axis",
    ),
    Mutation(
        "openvino-forgets-zero-points", "qfunc.numerics.kernels.requantize:range_ends",
        "top = s * (high - zero_point)",
        "top = s * high",
        "tests/lowering/openvino_cpu/test_openvino_lowering.py::test_ranges_of_zero_points",
    ),
    Mutation(
        "tvm-drops-every-clamp", "qfunc.targets.onnx_qnn.rewrite:_Rewrite._result",
        "return result if all(self._is_implied(clamp, quantizer) for clamp in clamps) else None",
        "return result",
        "tests/lowering/qlinear/test_qlinear.py::test_a_clamp_within_the_codes_stays",
    ),
    Mutation(
        "tvm-moves-whatever-the-qparams", "qfunc.targets.onnx_qnn.rewrite:_Rewrite._move",
        "any(r is None or not self._same_qparams(source, r) for r in results)",
        "any(r is None for r in results)",
        "tests/lowering/qlinear/test_qlinear.py::test_moves_with_other_qparams_stay",
    ),
    Mutation(
        "tvm-linear-layers-in-float", "qfunc.targets.onnx_qnn.ops:WRITERS",
        '"Gemm": _gemm, ',
        "",
        "tests/lowering/qlinear/test_qlinear.py::test_every_op_is_on_codes_and_every_code_is_the_emulation_s",
    ),
    Mutation(
        "tvm-any-bias-scale", "qfunc.targets.onnx_qnn.rewrite:_Rewrite._has_product_scale",
        "return bool(np.all(constants[b.scale] == product) and not constants[b.zero_point].any())",
        "return True",
        "tests/lowering/qlinear/test_qlinear.py::test_a_bias_of_another_scale_keeps_its_convolution_in_float",
    ),
    Mutation(
        "tengine-relu-by-mqbench-s-name", "qfunc.targets.tengine_u8.lowering:_clamps",
        'return bool(node.op_type == "Relu")',
        'return bool(node.op_type == "ReLU")',
        "tests/lowering/toolchains/test_tengine.py::test_every_activation_has_a_line_and_so_has_a_convolution_before_a_relu",
    ),
    Mutation(
        "tengine-any-clip-is-relu6", "qfunc.targets.tengine_u8.lowering:_clamps",
        "return len(bounds) == 2 and bool(np.array_equal(bounds, [0, 6]))",
        "return len(bounds) == 2",
        "tests/lowering/toolchains/test_tengine.py::test_the_rule_is_for_relu_and_relu6_alone",
    ),
    Mutation(
        "tengine-names-with-spaces", "qfunc.targets.tengine_u8.lowering:_require",
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
        "litert-celu-of-one-rate", "qfunc.lowering.nhwc.ops:_celu",
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
        "litert-groups-share-neighbours", "qfunc.arithmetic.integers:integers_of",
        'scale.repeat(unit.arguments["groups"])',
        'scale.repeat_interleave(unit.arguments["groups"])',
        "tests/lowering/test_composed_ops.py::test_pools_with_borders_and_grouped_transposed_convolutions_are_exact",
    ),
    Mutation(
        "litert-reductions-keep-the-first-axis-open", "qfunc.lowering.nhwc.shape:batch_axis",
        "varies = step.source.varies(step.output)",
        "varies = 0",
        "tests/lowering/test_batch_axes.py::test_the_batch_may_be_another_axis", case="litert-reductions",
    ),
    Mutation(
        "litert-wraps-as-edges", "qfunc.lowering.nhwc.moves:_continued",
        "places % length if wraps else",
        "places % length if not wraps else",
        "tests/lowering/test_composed_ops.py::test_composed_ops_are_those_of_torch",
    ),
    Mutation(
        "litert-any-slope-in-the-delegate", "qfunc.arithmetic.fixed_point:FixedBits.kernel",
        "self.least <= abs(float(s)) <= _LARGEST_MULTIPLIER",
        "abs(float(s)) <= _LARGEST_MULTIPLIER",
        "tests/lowering/tflite/test_litert_extremes.py::test_a_slope_that_the_delegate_leaves_to_the_optimised_kernel",
    ),
    Mutation(
        "litert-bounds-to-even", "qfunc.targets.litert.builder:TfliteBuilder.bound_code",
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
        "litert-celu-bends-above-one", "qfunc.lowering.nhwc.ops:_celu",
        '_number(step, "zero", 0.0)',
        '_number(step, "zero", 1.0)',
        "tests/lowering/tflite/test_decompositions.py::test_celu_is_within_four_roundings_of_alpha",
    ),
    Mutation(
        "onnxruntime-halves-by-the-cubic-kernel", "qfunc.lowering.onnx.cubic_resizes:_matrices",
        "scales.min() >= 1",
        "scales.min() >= 0",
        "tests/lowering/onnxruntime/test_cubic_resizes.py::test_the_runtime_loads_the_file_and_computes_the_emulations_codes",
    ),
    Mutation(
        "onnx-counts-the-window-behind-the-image", "qfunc.lowering.onnx.pooling:_as_in_pytorch",
        'return {"ceil_mode": 0, ',
        'return {"ceil_mode": 1, ',
        "tests/lowering/onnx/test_rare_ops.py::test_the_runtime_computes_what_torch_does",
    ),
    Mutation(
        "sizes-read-codes", "qfunc.placement.place:_Placement._tensor_readers",
        " if reads_values(u, node)]",
        "]",
        "tests/frontend/test_computed_numbers.py::test_a_reader_of_sizes_is_no_reader_of_the_codes_that_ops_move",
    ),
    Mutation(
        "a-union-follows-one-input", "qfunc.placement.site_table:SiteTable.tie",
        'largest.name, largest.leader = least, "union" if union else leader',
        "largest.name, largest.leader = least, leader",
        "tests/placement/test_unions.py::test_a_union_stays_one_where_an_op_after_it_takes_the_scale_of_its_input",
    ),
)  # fmt: skip
