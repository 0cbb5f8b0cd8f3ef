"""Breakages of the ONNX writer and of deploy, caught by the real runtime."""

from mutants.mutation import Mutation

INTEGER = "tests/conformance/test_ops.py::test_integer_units_are_bit_exact"
STORED = "tests/transforms/test_deploy.py::test_weights_are_stored_as_the_integers_of_the_simulation"

DEPLOYMENT = (
    Mutation(
        "pads-by-axis", "qfunc.lowering.onnx.linear:_conv",
        'attributes["pads"] = per_axis(c["padding"], rank) * 2',
        'attributes["pads"] = sorted(per_axis(c["padding"], rank) * 2)',
        INTEGER, case="conv2d dilated",
    ),
    Mutation(
        "same-pads-begin-with-more", "qfunc.lowering.onnx.linear:_conv",
        "[t // 2 for t in total] + [t - t // 2 for t in total]",
        "[t - t // 2 for t in total] + [t // 2 for t in total]",
        INTEGER, case="conv2d same, even kernel",
    ),
    Mutation(
        "weights-not-transposed", "qfunc.lowering.onnx.linear:_linear",
        "transposed = 0 if c.node.target is dense else 1",
        "transposed = 0",
        "tests/lowering/onnx/test_writer_mutants.py::test_a_square_linear",
    ),
    Mutation(
        "dilations-dropped", "qfunc.lowering.onnx.linear:_conv",
        '"dilations": dilation,',
        '"dilations": [1] * rank,',
        INTEGER, case="conv2d dilated",
    ),
    Mutation(
        "padding-counted", "qfunc.lowering.onnx.pooling:_pool",
        'int(c["count_include_pad"])',
        "1",
        INTEGER, case="avg_pool no pad count",
    ),
    Mutation(
        "axis-zero", "qfunc.lowering.onnx.qdq_nodes:_qparams",
        "axis = int(shared.axis) % max(encoding.qparams.scale.ndim, 1)",
        "axis = 0",
        INTEGER, case="matmul constant rank 2",
    ),
    Mutation(
        "zero-points-all-zero", "qfunc.lowering.onnx.qdq_nodes:_qparams",
        "zeros = zero.cpu().numpy()",
        "zeros = (zero * 0).cpu().numpy()",
        INTEGER, case="conv2d",
    ),
    Mutation(
        "stored-unsigned", "qfunc.lowering.onnx.builder:_STORED",
        "(8, True): TensorProto.INT8",
        "(8, True): TensorProto.UINT8",
        STORED,
    ),
    Mutation(
        "narrow-codes-at-the-end-of-their-type", "qfunc.lowering.onnx.qdq_nodes:write_quantizer",
        "if (codes_of.qmin, codes_of.qmax) != (storage_type.qmin, storage_type.qmax):",
        "if False:",
        "tests/lowering/onnx/test_qdq_nodes.py::test_integers_saturate_at_the_ends_of_their_own_codes",
    ),
    Mutation(
        "batch-not-dynamic", "qfunc.lowering.onnx.builder:GraphBuilder.declare",
        'self.axes.get(tried, ("", 0, label))[2] if size is None else size',
        "2 if size is None else size",
        "tests/transforms/test_deploy.py::test_the_artifact_runs_with_any_batch",
    ),
    Mutation(
        "weights-stored-as-float", "qfunc.lowering.onnx.writer:_Writer._constant",
        "self.real[key] = write_constant(self.graph, value, encoding, name)",
        "self.real[key] = self.graph.constant((encoding.codes(value) * encoding.qparams.scale).float(), name)",
        STORED,
    ),
    Mutation(
        "deploy-does-not-check", "qfunc.transforms.onnx_check:require_same_function",
        "if different:",
        "if False:",
        "tests/transforms/test_deploy.py::test_an_artifact_that_computes_something_else_is_refused",
    ),
    Mutation(
        "deploy-checks-outputs-only", "qfunc.transforms.onnx_check:require_same_function",
        "different = first_difference(proto, tensors, RoundHalfEven(model), given, names)",
        'different = "output"',
        "tests/transforms/test_deploy.py::test_codes_that_round_otherwise_and_spread_are_no_other_function",
    ),
    Mutation(
        "deploy-follows-the-simulation", "qfunc.transforms.onnx_check:_TeacherForced.call_module",
        "return nearest.to(value.dtype)",
        "return value",
        "tests/transforms/test_deploy.py::test_one_wrong_code_is_not_carried_on",
    ),
    Mutation(
        "deploy-does-not-compare-float-outputs", "qfunc.transforms.onnx_check:first_difference",
        "if not interpreter.difference and not allclose(values[name], a):",
        "if False:",
        "tests/transforms/test_deploy.py::test_a_float_output_that_is_computed_otherwise_is_refused",
    ),
    Mutation(
        "idle-quantizers-are-float-units", "qfunc.targets.onnxruntime.optimized_model:_redundant_pairs",
        "if qparams[0] == qparams[1]:",
        "if False:",
        "tests/conformance/test_ops.py::test_float_units_are_predicted_and_all_others_bit_exact[layer_norm over channels]",
    ),
    Mutation(
        "codes-as-run-in-the-inverse-layout", "qfunc.targets.onnxruntime.codes_as_run:_Layouts._transposed",
        "perm.index(before[k])",
        "perm[before[k]]",
        "tests/lowering/onnxruntime/test_codes_as_run.py::test_layouts_are_those_of_the_original_model[relu]",
    ),
    Mutation(
        "deploy-checks-with-the-hardware-s-ties", "qfunc.transforms.onnx_check:_sample_run",
        "run_in_evaluation_mode(model, given, as_written=True)",
        "run_in_evaluation_mode(model, given)",
        "tests/transforms/test_deploy.py::test_ties_that_other_hardware_rounds_otherwise_are_no_other_function",
    ),
    Mutation(
        "deploy-takes-float64", "qfunc.transforms.deploy:_require_float32",
        'if getattr(torch, dtype).is_floating_point and dtype != "float32":',
        "if False:",
        "tests/transforms/test_errors.py::test_a_dtype_that_no_artifact_holds",
    ),
    Mutation(
        "report-on-one-scale", "qfunc.lowering.quantized_tensor:quantized_tensor",
        "((), ()) if in_blocks else (tuple(scale.flatten().tolist()),",
        "((), ()) if in_blocks else ((float(scale.max()),),",
        "tests/transforms/test_deploy.py::test_the_report_says_how_it_was_made",
    ),
    Mutation(
        "logarithmic-one-octave-off", "qfunc.lowering.onnx.qdq_nodes:LOG_QUANTIZE",
        "halved = Sub(first, one)",
        "halved = Sub(first, low)",
        "tests/lowering/onnx/test_qdq_nodes.py::test_logarithmic_activations_are_a_function_of_the_model_s_own",
    ),
    Mutation(
        "float-model-forgets-zero-points", "qfunc.lowering.qdq.qparams:dequantized",
        "(codes.astype(np.int64) - zero)",
        "(codes.astype(np.int64))",
        "tests/lowering/onnx/test_qdq_nodes.py::test_zero_points_of_weights_are_subtracted",
    ),
    Mutation(
        "float-model-on-another-axis", "qfunc.lowering.qdq.qparams:dequantized",
        "-1 if i == qparams.axis % codes.ndim and",
        "-1 if i == 1 and",
        "tests/lowering/onnx/test_qdq_nodes.py::test_the_float_model_has_the_quantized_weights_and_no_quantizers",
    ),
    Mutation(
        "float-weights-behind-an-activation", "qfunc.lowering.onnx.writer:_Writer._copy_of_float",
        "for n in (node, source)]",
        "for n in (node,)]",
        "tests/lowering/onnx/test_writer_mutants.py::test_what_stays_float_stays_float_behind_an_activation_that_the_runtime_drops",
    ),
    Mutation(
        "keys-are-not-names", "qfunc.execution.output_names:_leaves",
        "named or isinstance(key, str)",
        "named",
        "tests/transforms/test_output_names.py::test_names_of_output_classes",
    ),
    Mutation(
        "signature-in-another-order", "qfunc.targets.litert.signature:with_signature",
        "zip(names, indices, strict=True)",
        "zip(names, indices[::-1], strict=True)",
        "tests/transforms/test_output_names.py::test_artifacts_have_the_names_of_the_forward",
    ),
)  # fmt: skip
