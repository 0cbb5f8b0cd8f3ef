"""Breakages of recurrence, attention and the structures of general networks."""

from mutants.mutation import Mutation

RUNTIME = (
    "tests/networks/test_general_networks.py::test_the_runtime_computes_what_was_emulated_and_that_is_close_to_the_simulation"
)
WRITES = "tests/frontend/test_slice_writes.py::test_a_captured_program_equals_torch_bit_for_bit"

NETWORKS = (
    Mutation(
        "values-of-a-leaf-are-one", "qfunc.graph.data_movement:only_moves_codes",
        "return not indexes_tuple(node)",
        "return True",
        "tests/frontend/test_options.py::test_a_leaf_of_several_values_is_quantized_behind_each",
    ),
    Mutation(
        "own-tracers-forget-writes", "qfunc.frontend.options:custom_tracer",
        "if type(tracer).proxy is fx.Tracer.proxy:",
        "if False:",
        "tests/frontend/test_options.py::test_writes_are_seen_by_every_tracer",
    ),
    Mutation(
        "readers-ask-for-what-the-hardware-fixes", "qfunc.placement.place:_Placement._edge",
        "if format_of(value) != existing.site.scheme.format and not is_fixed:",
        "if format_of(value) != existing.site.scheme.format:",
        "tests/lowering/onnx/test_qdq_nodes.py::test_a_softmax_stays_as_the_hardware_fixes_it_and_its_reader_takes_that",
    ),
    Mutation(
        "a-sum-of-masks-begins-with-the-first", "qfunc.frontend.python_sum:is_sum_start",
        "return x if (_is_of_numbers(x, owner) if known is None else known == dtype_of(x)) else None",
        "return x",
        "tests/frontend/test_python_sum.py::test_the_sum_is_what_torch_gives_by_so_many_additions[masks moved-fx]",
    ),
    Mutation(
        "some-parts-are-read-as-one-tensor", "qfunc.frontend.multi_output:_uses_tuple",
        "return isinstance(user.args[1], slice)",
        "return False",
        "tests/frontend/test_multi_output.py::test_they_are_parts_like_others[chunk, backwards]",
    ),
    Mutation(
        "windows-are-put-where-none-was-taken", "qfunc.lowering.onnx.image:_col2im",
        "output_padding = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, d, p, s in axes]",
        "output_padding = [0 for n, k, d, p, s in axes]",
        "tests/lowering/onnx/test_rare_ops.py::test_the_runtime_computes_what_torch_does[fold-fx]",
    ),
    Mutation(
        "antialias-takes-one-factor-for-both", "qfunc.lowering.onnx.image:_antialias",
        "columns = _matrix(c, width, (width, wide), (1.0, factors[1]))",
        "columns = _matrix(c, width, (width, wide), (1.0, factors[0]))",
        "tests/lowering/onnx/test_rare_ops.py::test_the_runtime_computes_what_torch_does[antialias, factors-fx]",
    ),
    Mutation(
        "hypot-overflows", "qfunc.lowering.onnx.elementwise:_DOUBLE",
        "_DOUBLE = element_type(torch.float64)",
        "_DOUBLE = element_type(torch.float32)",
        "tests/lowering/onnx/test_rare_ops.py::test_the_runtime_computes_what_torch_does[hypot-fx]",
    ),
    Mutation(
        "wrappers-inside-stay", "qfunc.frontend.capture:capture",
        "[unwrap_inside(owned), remove_parametrizations(owned)]",
        "[remove_parametrizations(owned)]",
        "tests/frontend/test_capture_models.py::test_wrappers_inside_a_model_are_looked_through",
    ),
    Mutation(
        "batches-give-fixed-arguments-any-value", "qfunc.execution.batches:Binder.__call__",
        "if self.fixed:  # raise for other values",
        "if False:",
        "tests/graph/test_arguments.py::test_what_examples_fix_may_be_left_out",
    ),
    Mutation(
        "mappings-become-dicts", "qfunc.frontend.fx.tracer:Tracer.create_arg",
        "return rebuild_mapping(self, a) if derived and is_user_mapping(a) else super().create_arg(a)",
        "return super().create_arg(a)",
        "tests/graph/test_output_classes.py::test_a_mapping_keeps_its_class",
    ),
    Mutation(
        "sizes-of-a-program-are-not-asked", "qfunc.execution.batches:Binder._like_the_model",
        "require_sizes(record_of(self.network), ordered)",
        "pass",
        "tests/frontend/test_exported_sizes.py::test_another_batch_is_refused",
    ),
    Mutation(
        "entries-of-a-program-in-any-order", "qfunc.graph.input_limits.sizes:require_sizes_of_call",
        "[_in_order(value, spec) for value, spec in inputs]",
        "[value for value, _ in inputs]",
        "tests/frontend/test_exported_sizes.py::test_keywords_and_entries_come_in_any_order",
    ),
    Mutation(
        "gates-as-torch-has-them", "qfunc.lowering.onnx.recurrent:ORDER",
        'ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}',
        'ORDER = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2), "rnn": (0,)}',
        "tests/networks/test_general_networks.py::test_recurrent_weights_are_stored_as_codes_in_the_order_of_onnx",
    ),
    Mutation(
        "scales-not-in-order", "qfunc.lowering.onnx.qdq_nodes:_qparams",
        "scale, zero = (scale, zero) if axis else (scale[rows], zero[rows])",
        "scale, zero = (scale, zero)",
        "tests/networks/test_general_networks.py::test_recurrent_weights_are_stored_as_codes_in_the_order_of_onnx",
    ),
    Mutation(
        "backwards-not-turned-back", "qfunc.ops.recurrent:_over_time",
        "made = made.flip(0) if reverse else made",
        "made = made.flip(1) if reverse else made",
        RUNTIME, case="recurrent: lstm, both ways, two levels",
    ),
    Mutation(
        "masks-the-wrong-way-round", "qfunc.ops.attention:left_out",
        "return ~mask if mask.dtype == torch.bool else mask",
        "return mask",
        RUNTIME, case="attention: masks",
    ),
    Mutation(
        "scores-not-scaled", "qfunc.ops.attention:scaled",
        "return input * (like.shape[-1] ** -0.5 if factor is None else factor)",
        "return input * (like.shape[-1] ** -1.0 if factor is None else factor)",
        RUNTIME, case="attention: function",
    ),
    Mutation(
        "computed-weights-stay", "qfunc.passes.parameters.fold_constant_weights:constant_nodes",
        "constants: set[fx.Node] = set()",
        "return set()",
        RUNTIME, case="structure: computed weights",
    ),
    Mutation(
        "resized-to-less", "qfunc.lowering.onnx.image:_factor",
        "if int(have * float(factor)) == want and same:",
        "if same:",
        RUNTIME, case="structure: detector",
    ),
    Mutation(
        "a-part-is-written-into-the-part-only", "qfunc.frontend.functionalize:_Builder._write_through",
        "for whole, index in self.storage.wholes(target):",
        "for whole, index in ():",
        WRITES, case="fx",
    ),
    Mutation(
        "what-stands-behind-counts-from-the-front", "qfunc.frontend.slice_writes:_concatenate",
        "if start > 0 > stop else x",
        "if False else x",
        WRITES, case="fx",
    ),
    Mutation(
        "only-neighbouring-sizes-are-tried", "qfunc.lowering.onnx.shape_inference:_sizes",
        "((1, (0, 1, FAR)), (-1, (0, 1, FAR)), (1, (0, 1))",
        "((1, (0, 1))",
        "tests/lowering/onnx/test_dynamic_shapes.py",
    ),
)  # fmt: skip
