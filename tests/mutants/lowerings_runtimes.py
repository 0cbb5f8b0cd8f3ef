"""Breakages of the lowerings to NNIE, Vitis AI, OpenVINO, TVM and Tengine, caught by readers of their formats."""

from mutants.mutation import Mutation

GFPQ, TABLE, VITIS = (f"qfunc/lowering/{name}.py" for name in ("gfpq", "gfpq_table", "vitis_files"))
NODES, OPS, CODES = (f"qfunc/lowering/{name}.py" for name in ("fake_quantize_nodes", "qlinear_ops", "qlinear_graph"))
TENGINE, FUSIONS = "qfunc/lowering/tengine_scale.py", "qfunc/lowering/tengine_fusions.py"

NNIE_TESTS, OPENVINO_TESTS, TVM_TESTS, TENGINE_TESTS, VITIS_TESTS = (
    f"tests/lowering/test_{name}.py" for name in ("gfpq", "fake_quantize_onnx", "qlinear", "tengine_scale", "vitis_files")
)

LOWERINGS_RUNTIMES = (
    Mutation(
        "nnie-clip-is-an-octave-step-off",
        GFPQ,
        "+ site.high) / 16))",
        "+ site.high + 1) / 16))",
        f"{NNIE_TESTS}::test_the_vendor_finds_the_simulation_s_z_of_every_tensor",
    ),
    Mutation(
        "nnie-groups-have-entries",
        TABLE,
        "and not grouped and",
        "and",
        f"{NNIE_TESTS}::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "nnie-permute-counts-from-one",
        TABLE,
        "_permute_{upsamples}",
        "_permute_{upsamples + 1}",
        f"{NNIE_TESTS}::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "nnie-resize-stays",
        TABLE,
        'node.op_type, node.domain = "Upsample", "qfunc"',
        'node.op_type, node.domain = "Resize", ""',
        f"{NNIE_TESTS}::test_upsamples_have_an_entry_more_and_groups_have_none",
    ),
    Mutation(
        "vitis-takes-any-scale",
        VITIS,
        "math.frexp(scale)[0] == 0.5",
        "scale > 0",
        f"{VITIS_TESTS}::test_what_the_dpu_cannot_say_is_refused_by_name",
    ),
    Mutation(
        "vitis-without-weights",
        VITIS,
        "in by_tensor(made, sites).items()}",
        'in by_tensor(made, sites).items() if site.role == "activation"}',
        f"{VITIS_TESTS}::test_every_tensor_has_a_fix_position",
    ),
    Mutation(
        "openvino-levels-of-narrow-weights",
        NODES,
        "high - low + 1 < 255:",
        "high - low + 1 == 0:",
        f"{OPENVINO_TESTS}::test_weights_of_fewer_levels_keep_their_step",
    ),
    Mutation(
        "openvino-ranges-along-the-first-axis",
        NODES,
        "i == (site.axis or 0) % rank else 1",
        "i == 0 else 1",
        f"{OPENVINO_TESTS}::test_transposed_convolutions_have_ranges_along_their_second_axis",
    ),
    Mutation(
        "openvino-forgets-zero-points",
        NODES,
        "above = scale * (high - zero)",
        "above = scale * high",
        f"{OPENVINO_TESTS}::test_ranges_of_zero_points",
    ),
    Mutation(
        "tvm-drops-every-clamp",
        CODES,
        "return made if all(self._implied(c, made) for c in clamps) else None",
        "return made",
        f"{TVM_TESTS}::test_a_clamp_within_the_codes_stays",
    ),
    Mutation(
        "tvm-moves-whatever-the-qparams",
        OPS,
        "any(r is None or not self.graph.same(source, r) for r in results)",
        "any(r is None for r in results)",
        f"{TVM_TESTS}::test_moves_with_other_qparams_stay",
    ),
    Mutation(
        "tvm-linear-layers-in-float",
        OPS,
        'case "Conv" | "Gemm":',
        'case "Conv":',
        f"{TVM_TESTS}::test_every_op_is_on_codes_and_every_code_is_the_emulation_s",
    ),
    Mutation(
        "tvm-any-bias-scale",
        CODES,
        "return bool(np.all(self.values[b.scale] == product) and not self.values[b.zero_point].any())",
        "return True",
        f"{TVM_TESTS}::test_a_bias_of_another_scale_keeps_its_convolution_in_float",
    ),
    Mutation(
        "tengine-relu-by-mqbench-s-name",
        FUSIONS,
        'return bool(node.op_type == "Relu")',
        'return bool(node.op_type == "ReLU")',
        f"{TENGINE_TESTS}::test_every_activation_has_a_line_and_so_has_a_convolution_before_a_relu",
    ),
    Mutation(
        "tengine-any-clip-is-relu6",
        FUSIONS,
        "return len(bounds) == 2 and bool(np.array_equal(bounds, [0, 6]))",
        "return len(bounds) == 2",
        f"{TENGINE_TESTS}::test_the_rule_is_for_relu_and_relu6_alone",
    ),
    Mutation(
        "tengine-names-with-spaces",
        TENGINE,
        "if any(c.isspace() for c in t)]",
        "if not t]",
        f"{TENGINE_TESTS}::test_what_tengine_cannot_say_is_refused_by_name",
    ),
    Mutation(
        "packed-takes-eight-bits",
        "qfunc/lowering/packed.py",
        "or fmt.bits > BITS:",
        "or fmt.bits > 8:",
        "tests/lowering/test_packed.py::test_eight_bits_stay_as_they_are",
    ),
    Mutation(
        "packed-forgets-the-sign",
        "qfunc/lowering/packed.py",
        "storage(Int(BITS, fmt.signed), site.name)",
        "storage(Int(BITS), site.name)",
        "tests/lowering/test_packed.py::test_packed_weights_are_the_same_numbers",
    ),
)
