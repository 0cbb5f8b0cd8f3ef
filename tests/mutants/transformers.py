"""Breakages of what transformers need: masks, positions, axes that vary."""

from mutants.mutation import Mutation

TRANSFORMERS = (
    Mutation(
        "cache-written-at-its-start", "qfunc.decoding.cache:StateCache.update",
        "scatter(LENGTH_AXIS, index, new)",
        "scatter(LENGTH_AXIS, index - index[:, :, :1], new)",
        "tests/decoding/test_decoder.py::test_any_split_of_a_text_has_the_logits_of_the_whole[llama]",
    ),
    Mutation(
        "caches-where-frequencies-change", "qfunc.decoding.rotary:with_fixed_frequencies",
        "length > limit",
        "False",
        "tests/decoding/test_rotary.py::test_frequencies_are_those_of_short_texts_or_the_length_is_refused",
    ),
    Mutation(
        "frequencies-of-the-last-text", "qfunc.decoding.rotary:_fix",
        'getattr(module, f"{prefix}original_inv_freq")',
        'getattr(module, f"{prefix}inv_freq")',
        "tests/decoding/test_rotary.py::test_frequencies_are_those_of_short_texts_or_the_length_is_refused",
    ),
    Mutation(
        "keys-of-the-encoder-are-computed-again", "qfunc.decoding.cache:StateCache.update",
        "return self.cross[2 * layer], self.cross[2 * layer + 1]",
        "return keys, values",
        "tests/decoding/test_encoder_decoder.py::test_any_split_of_a_text_has_the_logits_of_the_whole",
    ),
    Mutation(
        "summands-after-dropouts-read-codes", "qfunc.placement.place:_Placement._may_precede",
        "transparent and all(v == value for v in self._wanted(source, producer))",
        "transparent",
        "tests/placement/test_ops_without_effect.py::test_a_summand_stays_as_the_target_says",
    ),
    Mutation(
        "infinities-deviate", "qfunc.emulation.float_units:_deviation",
        "torch.where(real.double() == value.value, 0.0, (real.double() - value.value).abs())",
        "(real.double() - value.value).abs()",
        "tests/emulation/test_float_units.py::test_an_infinity_is_no_deviation_and_hides_none",
    ),
    Mutation(
        "masks-of-the-first-row", "qfunc.decoding.cache:RowPositions.__getitem__",
        "self.positions[:, None, :, None]",
        "self.positions[:1, None, :, None]",
        "tests/decoding/test_answers.py::test_every_answer_is_the_model_s_and_the_runtime_s[llama-static]",
    ),
    Mutation(
        "padding-before-the-row", "qfunc.decoding.prompts:positions_of",
        " % ids.shape[1]",
        " + 0 * ids.shape[1]",
        "tests/decoding/test_ragged_prompts.py::test_lists_and_masks_are_the_same_prompt",
    ),
    Mutation(
        "positions-are-the-batch", "qfunc.transforms.onnx_check:_is_batched",
        'dims[0].dim_param == "batch"',
        'dims[0].HasField("dim_param")',
        "tests/decoding/test_decoder.py::test_as_many_tokens_as_rows_are_not_taken_for_the_batch",
    ),
    Mutation(
        "state-of-other-qparams", "qfunc.lowering.coded_state.ends:_state",
        "len({source.qparams(n) for n in pairs}) == 1 and ",
        "",
        "tests/decoding/test_coded_state.py::test_state_of_other_qparams_stays_real",
    ),
    Mutation(
        "last-position-forgotten", "qfunc.decoding.generate:with_tokens",
        "given[1][:, -1:] + 1",
        "given[1][:, :1] + 1",
        "tests/decoding/test_generate.py::test_the_answer_of_the_float_model_is_that_without_a_cache[llama]",
    ),
    Mutation(
        "returned-moves-are-quantized", "qfunc.lowering.onnx.writer:_Writer._is_read_moved",
        "len(leaf.users) > 1",
        "len(leaf.users) > 9",
        "tests/lowering/onnxruntime/test_caches.py::test_a_returned_value_is_not_quantized_for_its_other_readers",
    ),
    Mutation(
        "written-along-the-first-axis", "qfunc.lowering.onnx.indexing:_index_put",
        "[1] * (rank - axis - 1)",
        "[1] * 0",
        "tests/lowering/onnxruntime/test_caches.py::test_a_cache_has_the_elements_of_the_runtime",
    ),
    Mutation(
        "lookups-of-long-tables", "qfunc.lowering.constant_folding:_evaluated",
        'node.op_type == "GatherElements"',
        "False",
        "tests/lowering/test_folded_lookups.py::test_a_gather_of_constants_is_folded",
    ),
    Mutation(
        "shared-quantizers-are-other-units", "qfunc.targets.onnxruntime.optimized_model:_difference",
        ' and "integer" in (one, other)',
        "",
        "tests/lowering/onnxruntime/test_transformers.py::test_reading_codes_between_float_ops_changes_no_unit",
    ),
    Mutation(
        "unbind-from-the-end", "qfunc.frontend.multi_output:select_output",
        "(-dim - 1)",
        "-dim",
        "tests/frontend/test_unbind.py::test_parts_are_slices",
    ),
    Mutation(
        "empty-tensors-are-joined", "qfunc.frontend.export.empty_tensors:_is_empty",
        "n == 0",
        "n < 0",
        "tests/frontend/test_empty_tensors.py::test_empty_tensors_are_not_joined",
    ),
    Mutation(
        "mask-not-named", "qfunc.passes.match_masks:match_masks",
        "op(\"add\", s, mask, commutative=True)",
        "op(\"sub\", s, mask)",
        "tests/lowering/onnx/test_exported_transformers.py::test_a_mask_that_is_added_is_in_no_scale[export]",
    ),
    Mutation(
        "guard-rounded-to-zero", "qfunc.passes.pipeline:prepare",
        "match_epsilon_guards(match_masks(named))",
        "match_masks(named)",
        "tests/passes/test_match_epsilon_guards.py::test_linear_attention_is_finite_and_runs_as_simulated",
    ),
    Mutation(
        "guard-of-one-reader-of-two", "qfunc.passes.match_epsilon_guards:_divides",
        "all(divided(u) or kind_of(u)",
        "any(divided(u) or kind_of(u)",
        "tests/passes/test_match_epsilon_guards.py::test_other_sums_are_not",
    ),
    Mutation(
        "positions-quantized", "qfunc.placement.place:_Placement._inputs",
        "in self.slots(node) if node not in self.types.positions else ():",
        "in self.slots(node):",
        "tests/lowering/onnx/test_exported_transformers.py::test_every_product_is_quantized_and_no_position_or_mask_is[decoder]",
    ),
    Mutation(
        "batch-of-one-fixed", "qfunc.frontend.export.program:_attempts",
        "torch.cat([t, t]) if t.ndim else t",
        "t",
        "tests/lowering/onnx/test_exported_transformers.py::test_one_example_is_enough_for_any_batch",
    ),
    Mutation(
        "axes-without-names", "qfunc.transforms.deploy:deployment",
        "axes = axes_of(record, inputs) if example_inputs is None else batch_of(record)",
        "axes = ()",
        "tests/lowering/onnx/test_exported_transformers.py::test_axes_that_vary_have_names_in_the_artifact",
    ),
    Mutation(
        "norm-of-another-value", "qfunc.passes.fuse_norms:_unit_norm",
        'op("pow", x, 2)',
        'op("pow", Var(""), 2)',
        "tests/passes/test_fuse_norms.py::test_what_is_no_norm_keeps_its_steps",
    ),
    Mutation(
        "norm-that-hides-a-value", "qfunc.graph.matcher:match_rewrite",
        "if rewrite.private else",
        "if False else",
        "tests/passes/test_fuse_norms.py::test_what_is_no_norm_keeps_its_steps",
    ),
    Mutation(
        "attention-never-drops", "qfunc.frontend.functionalize:_Builder._attention",
        "(mask,), causal, factor, dropout)[0]",
        "(mask,), causal, factor)[0]",
        "tests/frontend/test_capture_attention.py::test_both_modes_are_the_model_s",
    ),
)  # fmt: skip
