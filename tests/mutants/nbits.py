"""Breakages of MatMulNBits: its codes, its lanes, its file, and what is seen of its level."""

from mutants.mutation import Mutation

PRODUCTS = "tests/lowering/onnxruntime/test_block_products.py::test_no_bit_of_a_product_differs"

IN_FLOAT = "tests/lowering/onnxruntime/test_float_products.py::test_no_bit_of_a_product_differs"

BEYOND = "tests/lowering/onnxruntime/test_block_products.py::test_products_of_scales_beyond_float32"

MATMUL = "tests/lowering/onnxruntime/test_float_matmuls.py::test_no_bit_of_a_product_differs"

CACHED = "tests/numerics/test_cached_attention.py::test_codes_and_results_have_the_bits_of_the_operator"

STEPS = "tests/decoding/test_cached_codes.py::test_every_step_is_the_runtime_s"

MIXTURES = "tests/decoding/test_stacked_experts.py::test_experts_are_added_in_the_order_of_their_tokens"

NBITS = (
    Mutation(
        "half-a-register-of-zeros-is-left-out",
        "qfunc.numerics.sums.blocks:_Rows.groups_of_four",
        "if len(lanes) < _LANES:",
        "if False:",
        BEYOND,
        case="2",
    ),
    Mutation(
        "positions-of-attention-with-gaps",
        "qfunc.targets.onnxruntime.attended_positions:_wrong",
        "if apart.any():",
        "if False:",
        "tests/decoding/test_cached_codes.py::test_positions_that_the_operator_does_not_take_are_refused",
        case="a gap",
    ),
    Mutation(
        "positions-of-several-rows-after-others",
        "qfunc.targets.onnxruntime.attended_positions:_wrong",
        "if rows > 1 and tokens > 1 and",
        "if False and",
        "tests/decoding/test_cached_codes.py::test_positions_that_the_operator_does_not_take_are_refused",
        case="several rows",
    ),
    Mutation(
        "cache-scores-in-one-sum",
        "qfunc.targets.onnxruntime.caches:_scores",
        "n % 2 if n < groups // 2 * 2 else 0",
        "0",
        CACHED,
    ),
    Mutation(
        "settings-without-units-are-no-errors",
        "qfunc.placement.without_effect.unused_rules:require_used",
        "require_units(target, plans)",
        "None",
        "tests/decoding/test_cached_codes.py::test_a_model_without_a_cache_is_refused",
    ),
    Mutation(
        "units-of-any-op",
        "qfunc.placement.without_effect.required_units:_has",
        "matches(select, g.root, plan.context)",
        "True",
        "tests/lowering/onnxruntime/test_block_tables.py::test_a_model_without_tables_is_refused",
    ),
    Mutation(
        "stacked-experts-of-any-form",
        "qfunc.placement.mixtures:of_one_form",
        "len(forms) == 3",
        "True",
        "tests/decoding/test_stacked_experts.py::test_a_model_without_experts_to_stack_is_refused",
    ),
    Mutation(
        "ids-from-the-end",
        "qfunc.targets.onnxruntime.runner:_with_checked_ids",
        "low < 0 or high",
        "high",
        "tests/decoding/test_ids_and_positions.py::test_ids_outside_of_a_table_are_refused",
    ),
    Mutation(
        "ids-of-batches-unchecked",
        "qfunc.graph.input_limits.ids:require_ids",
        "low < 0 or high >= table.rows",
        "False",
        "tests/decoding/test_ids_and_positions.py::test_ids_outside_of_a_table_are_refused",
    ),
    Mutation(
        "positions-from-the-end",
        "qfunc.graph.input_limits.positions:wrong_position",
        "low < 0 or high >= length",
        "high >= length",
        "tests/decoding/test_ids_and_positions.py::test_positions_outside_of_the_cache_and_twice_are_refused",
    ),
    Mutation(
        "positions-that-repeat",
        "qfunc.graph.input_limits.positions:WrittenPositions.wrong",
        "apart and self.along is not None",
        "False",
        "tests/decoding/test_ids_and_positions.py::test_positions_outside_of_the_cache_and_twice_are_refused",
    ),
    Mutation(
        "positions-of-slices-unchecked",
        "qfunc.targets.onnxruntime.written_positions:_inserted",
        "min(ends) >= _END",
        "False",
        "tests/decoding/test_ids_and_positions.py::test_positions_outside_of_the_cache_and_twice_are_refused",
    ),
    Mutation(
        "positions-of-the-first-token",
        "qfunc.decoding.decoder:_exported",
        "positions[:1, -1:] + length - 3",
        "positions[:1, -1:]",
        "tests/decoding/test_ids_and_positions.py::test_a_cache_beyond_the_table_of_positions_is_refused",
    ),
    Mutation(
        "cache-keeps-what-it-held",
        "qfunc.numerics.written_codes:append_codes",
        "torch.full_like(written, unwritten)",
        "codes",
        CACHED,
    ),
    Mutation(
        "cache-of-4-bits-unwritten-is-zero",
        "qfunc.targets.onnxruntime.decoder_target:onnxruntime_nbits",
        "AppendCodes(held.qmin if held.bits == 4 else 0)",
        "AppendCodes()",
        STEPS,
    ),
    Mutation(
        "cache-tokens-in-the-order-of-the-batch",
        "qfunc.targets.onnxruntime.group_query_attention:_Writer",
        'self._node("Sub", [positions, first], f"{base}_from_first")',
        'self._node("Sub", [positions, positions], f"{base}_from_first")',
        STEPS,
    ),
    Mutation(
        "cache-windows-taken-for-causal",
        "qfunc.passes.fuse_cached_attention:_shows",
        "bool((mask == seen).all())",
        "bool((mask <= seen).all())",
        "tests/decoding/test_cached_codes.py::test_windows_and_narrow_heads_are_refused",
    ),
    Mutation(
        "cache-rounded-before-the-operator",
        "qfunc.placement.partition:Partition.is_appended",
        "return bool(kernels) and all(",
        "return not kernels and all(",
        "tests/decoding/test_cached_codes.py::test_keys_are_rounded_by_the_operator_alone",
    ),
    Mutation("matmul-slices-do-not-double", "qfunc.targets.onnxruntime.matmul:_slice_size", "stride * 2", "stride", MATMUL),
    Mutation(
        "matmul-row-alone-fused",
        "qfunc.targets.onnxruntime.matmul:_Order.product",
        "a.shape[-2] == 1",
        "a.shape[-2] == 0",
        MATMUL,
    ),
    Mutation(
        "matmul-threads-divide-matrices-that-others-have",
        "qfunc.targets.onnxruntime.matmul:_in_parts",
        "// _PRODUCTS + 1) // matrices)",
        "// _PRODUCTS + 1) // 1)",
        MATMUL,
    ),
    Mutation(
        "matmul-part-of-one-column-in-lanes",
        "qfunc.targets.onnxruntime.matmul:_Order.product",
        "self.single and not",
        "b.shape[-1] == 1 and not",
        MATMUL,
    ),
    Mutation(
        "nbits-bias-after-all-slices",
        "qfunc.targets.onnxruntime.matmul:_Order.product",
        "return _along(a, b, bias, self.factor, self.depth)",
        "return _along(a, b, None, self.factor, self.depth) + (0.0 if bias is None else bias)",
        IN_FLOAT,
    ),
    Mutation(
        "matmul-two-columns-as-one", "qfunc.targets.onnxruntime.matmul:_in_lanes", "(width - whole) // 2 * 2", "0", MATMUL
    ),
    Mutation(
        "matmul-factor-after-all-slices",
        "qfunc.targets.onnxruntime.matmul:_along",
        "fma(sums, alpha, total)",
        "total + sums * alpha",
        MATMUL,
    ),
    Mutation(
        "matmul-transposes-are-moved",
        "qfunc.placement.unit_spec:_is_transposed",
        "axes in (swapped, [*range(1, rank), 0])",
        "axes[-1] != rank - 1",
        "tests/lowering/onnxruntime/test_float_matmuls.py::test_a_product_in_a_network_is_exact",
    ),
    Mutation(
        "mean-packets-from-the-first-entry",
        "qfunc.targets.onnxruntime.eigen:row_sums",
        "(-n * torch.arange",
        "(0 * torch.arange",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_rms_norm",
    ),
    Mutation(
        "sine-of-large-angles-reduced-in-float32",
        "qfunc.targets.onnxruntime.eigen:_reduced",
        "not bool((size >= large).any())",
        "size is not None",
        "tests/lowering/onnxruntime/test_float_kernels.py::test_angles",
    ),
    Mutation(
        "nbits-a-row-alone-along-k",
        "qfunc.targets.onnxruntime.float_products:float_product",
        "len(rows) % _ROWS == 1",
        "len(rows) > _ROWS and len(rows) % _ROWS == 1",
        IN_FLOAT,
    ),
    Mutation(
        "nbits-lanes-of-all-channels-by-halves",
        "qfunc.targets.onnxruntime.float_products:_in_lanes",
        "len(w) // _TILE * _TILE",
        "0",
        IN_FLOAT,
    ),
    Mutation(
        "nbits-codes-by-the-reciprocal-scale",
        "qfunc.numerics.sums.blocks:quantize_rows",
        "torch.where(largest != 0, most / largest, 0.0)",
        "torch.where(largest != 0, 1 / (largest / most), 0.0)",
        "tests/lowering/onnxruntime/test_block_products.py::test_rows_are_quantized_by_two_quotients",
    ),
    Mutation(
        "nbits-registers-by-pairs-of-lanes",
        "qfunc.numerics.sums.blocks:_interleaved",
        "(r // 2, r % 2) if block <= 32 else (r % 2, r // 2)",
        "(r // 2, r % 2)",
        PRODUCTS,
    ),
    Mutation(
        "nbits-last-rows-by-halves",
        "qfunc.numerics.sums.blocks:_total",
        "(~in_pair | paired)",
        "paired",
        PRODUCTS,
    ),
    Mutation(
        "nbits-products-of-zero-points-are-rounded",
        "qfunc.numerics.sums.blocks:block_product",
        "fma(level[:, k, None], offset[:, k], correction)",
        "level[:, k, None] * offset[:, k] + correction",
        PRODUCTS,
    ),
    Mutation(
        "nbits-groups-of-four-in-order",
        "qfunc.numerics.sums.blocks:_Rows.groups_of_four",
        "pair[b % 2] = fma(sums, scales, pair[b % 2])",
        "pair[0] = fma(sums, scales, pair[0])",
        PRODUCTS,
    ),
    Mutation(
        "nbits-narrow-codes-are-shifted-by-their-own-width",
        "qfunc.arithmetic.block_weights:stored_unsigned",
        "1 << (bits - 1)",
        "1 << (coding.format.bits - 1)",
        "tests/lowering/onnxruntime/test_nbits_target.py::test_narrower_codes_are_stored_in_the_width_that_holds_them",
    ),
    Mutation(
        "nbits-inputs-are-quantized-before-the-operator",
        "qfunc.targets.onnxruntime.block_weights:with_block_products",
        "_without_quantizers(made)",
        "pass",
        "tests/lowering/onnxruntime/test_nbits_target.py::test_the_file_has_what_its_own_packer_writes",
    ),
    Mutation(
        "nbits-level-4-is-assumed",
        "qfunc.targets.onnxruntime.block_products:_unit",
        "== -127.0 * 2 ** (bits - 1)",
        "is not None",
        "tests/lowering/onnxruntime/test_nbits_target.py::test_the_level_that_the_session_has_is_compared",
    ),
    Mutation(
        "experts-with-few-tokens-come-first",
        "qfunc.targets.onnxruntime.experts:_expert_sums",
        "if lanes == 1 else counts[a] > counts[b]",
        "",
        MIXTURES,
    ),
    Mutation(
        "experts-in-one-sum", "qfunc.targets.onnxruntime.experts:_expert_sums", "sums[place % lanes]", "sums[0]", MIXTURES
    ),
    Mutation("equal-experts-in-order", "qfunc.targets.onnxruntime.introsort:_divide", "high - low > _SHORT", "False", MIXTURES),
)
