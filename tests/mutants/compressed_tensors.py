"""Breakages of the checkpoints of compressed-tensors and of the quantizers to small floats."""

from mutants.mutation import Mutation

COMPRESSED_TENSORS = (
    Mutation(
        "checkpoint-words-from-the-high-bits", "qfunc.targets.compressed_tensors.layers:pack_words",
        'axis=-1, bitorder="little")[..., :bits]',
        'axis=-1, bitorder="big")[..., -bits:]',
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_words_are_one_string_of_bits_a_row",
    ),
    Mutation(
        "checkpoint-halves-in-the-other-order", "qfunc.targets.compressed_tensors.layers:_pack_halves",
        "index[:, ::2] | index[:, 1::2] << 4",
        "index[:, 1::2] | index[:, ::2] << 4",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_the_bytes_hold_the_weights_of_the_simulation",
        case="MXFP4A16",
    ),
    Mutation(
        "checkpoint-scale-of-a-tensor-of-twice-the-range", "qfunc.targets.compressed_tensors.layers:two_levels",
        "exponent - (fraction == 0.5)",
        "exponent",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py"
        "::test_the_scale_of_a_tensor_is_a_power_of_two_that_uses_the_range_of_e4m3",
    ),
    Mutation(
        "checkpoint-zero-points-along-rows", "qfunc.targets.compressed_tensors.layers:_of_integers",
        "pack_words(zeros.reshape(scale.shape).T, fmt.bits).T",
        "pack_words(zeros.reshape(scale.shape), fmt.bits)",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_the_bytes_hold_the_weights_of_the_simulation",
        case="W4A16_ASYM",
    ),
    Mutation(
        "checkpoint-tied-heads-by-the-name-of-the-table", "qfunc.targets.compressed_tensors.checkpoint:checkpoint_part",
        '{module_of(name), node.name.removesuffix(".rows")}',
        "{module_of(name)}",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_a_head_that_is_tied_to_the_embedding_stays_in_float",
    ),
    Mutation(
        "checkpoint-tied-parameters-by-their-last-name", "qfunc.frontend.export.program:_read_by_first_names",
        "in reversed(named)",
        "in named",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_a_tied_parameter_is_stored_by_its_first_name",
    ),
    Mutation(
        "checkpoint-heads-tied-after-rotations",
        "qfunc.targets.compressed_tensors.lowering:CompressedTensorsLowering.join",
        'config["tie_word_embeddings"] = False',
        "pass",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_a_head_of_its_own_is_not_tied_in_the_config",
    ),
    Mutation(
        "rotations-of-tied-heads-under-new-names", "qfunc.graph.constants:replace",
        "if own == path or",
        "if True or",
        "tests/corrections/test_rotate.py::test_a_tied_head_gets_the_parameter_that_is_called_by_its_name",
    ),
    Mutation(
        "checkpoint-other-forms-of-parameters", "qfunc.targets.compressed_tensors.checkpoint:checkpoint_part",
        "if held is None or list(held.dims) != shape:",
        "if held is None:",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py"
        "::test_parameters_that_are_stored_in_another_form_are_refused",
    ),
    Mutation(
        "checkpoint-one-group-for-all-layers", "qfunc.targets.compressed_tensors.checkpoint:quantization_config",
        '["Linear"] if len(groups) == 1 else',
        '["Linear"] if len(groups) > 0 else',
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_layers_of_two_kinds_are_named_in_two_groups",
    ),
    Mutation(
        "floats-of-static-scales-by-division", "qfunc.lowering.onnx_quantizers.floats:_rounded",
        "if scheme.division else f\"Mul({operand}, inverse)\"",
        "if True else f\"Mul({operand}, inverse)\"",
        "tests/lowering/compressed_tensors/test_float_quantizers.py"
        "::test_static_scales_in_onnx_are_multiplied_by_their_inverse_as_in_vllm",
    ),
    Mutation(
        "floats-without-a-smallest-scale", "qfunc.lowering.onnx_quantizers.floats:_PLAIN_SCALE",
        "s = Max(chosen, parameter)",
        "s = Identity(chosen)",
        "tests/lowering/compressed_tensors/test_float_quantizers.py::test_tokens_in_onnx_are_those_of_the_simulation",
    ),
    Mutation(
        "floats-of-one-level", "qfunc.lowering.onnx_quantizers.floats:step",
        "scale if outer is None else scale * outer.float().cpu()",
        "scale",
        "tests/lowering/compressed_tensors/test_checkpoint_files.py::test_the_bytes_hold_the_weights_of_the_simulation",
        case="NVFP4A16",
    ),
    Mutation(
        "fp4-scales-of-the-nearest-power", "qfunc.lowering.onnx_quantizers.floats:_POWER_SCALE",
        "reached = Where(below, next, power)",
        "reached = Identity(power)",
        "tests/lowering/compressed_tensors/test_float_quantizers.py::test_blocks_of_fp4_in_onnx_are_those_of_the_simulation",
    ),
    Mutation(
        "fused-readers-with-outer-scales-of-their-own", "qfunc.placement.fused_readers:_shared",
        "largest = torch.stack(outers).amax(0)",
        "return qparams",
        "tests/transforms/test_outer_scales.py::test_readers_of_one_tensor_share_the_largest_outer_scale",
    ),
    Mutation(
        "outer-scales-never-estimated", "qfunc.execution.fixed_qparams:observed_site",
        "value=Scheme(site.scheme.format)",
        "value=site.scheme",
        "tests/transforms/test_outer_scales.py::test_the_outer_scale_is_the_smallest_power_of_two_that_clips_no_calibrated_value",
    ),
    Mutation(
        "int8-products-with-a-rounded-bias", "qfunc.targets.compressed_tensors.target:INT8_PRODUCT",
        ", fused_bias=True",
        "",
        "tests/lowering/compressed_tensors/test_int8_products.py::test_no_bit_of_a_product_differs",
    ),
)  # fmt: skip
