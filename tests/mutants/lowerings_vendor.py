"""Breakages of the lowerings of TensorRT, SNPE, PPL, PPL-CUDA and STPU."""

from mutants.mutation import Mutation

CLIP, ENCODINGS, PPL, CUDA, STPU, SIDE, TOGETHER = (
    f"qfunc/lowering/{name}.py"
    for name in ("clip_ranges", "encodings", "ppl_json", "ppl_cuda", "stpu_ranges", "sidecar", "together")
)
FILES, FORMATS, REFUSALS = (f"tests/lowering/test_vendor_{name}.py" for name in ("files", "formats", "refusals"))
RANGES = f"{FILES}::test_the_ranges_are_those_of_the_fake_quantizers"
EXPONENTS = f"{FORMATS}::test_exponents_and_biases_of_stpu"
FOLDED = f"{FORMATS}::test_a_product_is_folded_where_no_one_else_sees_it"

LOWERINGS_VENDOR = (
    Mutation(
        "clip-range-of-the-lowest-code", CLIP,
        "return site.scale[0] * 127",
        "return -site.minimum[0]",
        f"{FORMATS}::test_the_scale_of_tensorrt_is_ours_with_and_without_the_code_below",
    ),
    Mutation(
        "weights-among-the-blobs", CLIP,
        'if s.role == "activation"}',
        'if s.role != "bias"}',
        f"{FILES}::test_stored_weights_are_the_quantized_ones[tensorrt]",
    ),
    Mutation(
        "offsets-of-the-other-sign", ENCODINGS,
        "[stored.qmin - z for z in self.zeros]",
        "[stored.qmin + z for z in self.zeros]",
        f"{FORMATS}::test_signs_and_offsets_of_zero_points",
    ),
    Mutation(
        "offsets-of-the-narrow-code", ENCODINGS,
        "[stored.qmin - z for z in self.zeros]",
        "[fmt.qmin - z for z in self.zeros]",
        f"{FORMATS}::test_encodings_per_channel",
    ),
    Mutation(
        "maximum-a-step-too-high", ENCODINGS,
        "(offset + (1 << self.bits) - 1)",
        "(offset + (1 << self.bits))",
        f"{RANGES}[snpe-encodings_0]",
    ),
    Mutation(
        "symmetric-whatever-the-sign", ENCODINGS,
        "self.symmetric = fmt.signed and not any(self.zeros)",
        "self.symmetric = not any(self.zeros)",
        f"{RANGES}[snpe-encodings_0]",
    ),
    Mutation(
        "weights-among-the-activations", ENCODINGS,
        'self.activation, self.bits = tensor, site.role == "activation", fmt.bits',
        'self.activation, self.bits = tensor, site.role != "bias", fmt.bits',
        f"{FORMATS}::test_encodings_per_channel",
    ),
    Mutation(
        "bias-encodings-a-channel", ENCODINGS,
        "kept = 1 if alike else len(site.scale)",
        "kept = len(site.scale)",
        f"{FORMATS}::test_a_derived_bias_has_as_many_encodings_as_its_weight_scales",
    ),
    Mutation(
        "ppl-one-of-many-channels", PPL,
        "if site.axis is None:",
        "if True:",
        f"{FORMATS}::test_ppl_has_lists_over_channels_and_bits_of_the_type",
    ),
    Mutation(
        "ppl-cuda-the-highest-code", CUDA,
        "return max(-site.minimum[0], site.maximum[0])",
        "return site.maximum[0]",
        f"{RANGES}[ppl_cuda-ppl_cuda]",
    ),
    Mutation(
        "transposed-weights-as-others", STPU,
        'if node.op_type == "Conv":',
        "if True:",
        f"{FORMATS}::test_a_transposed_convolution_sums_over_its_inputs",
    ),
    Mutation(
        "exponents-of-the-output-alone", STPU,
        'exponent(max(total, entry["max"])) - 10',
        'exponent(entry["max"]) - 10',
        EXPONENTS,
    ),
    Mutation(
        "folded-with-the-sign", STPU,
        "self.weights[conv.input[1]] * abs(by)",
        "self.weights[conv.input[1]] * by",
        f"{RANGES}[stpu-stpu]",
    ),
    Mutation(
        "folded-without-the-bias", STPU,
        "for index in range(1, len(conv.input)):",
        "for index in (1,):",
        f"{FILES}::test_a_toolchain_that_obeys_the_files_computes_the_simulation[stpu-stpu]",
    ),
    Mutation(
        "shared-weights-folded-in-place", STPU,
        "made = name if readers[name] == 1 else",
        "made = name if True else",
        FOLDED,
    ),
    Mutation(
        "relu-keeps-its-range-to-itself", STPU,
        'node.op_type in ("Relu", "Clip")',
        "node.op_type in ()",
        EXPONENTS,
    ),
    Mutation(
        "concat-of-any-ranges", STPU,
        "if self.largest.setdefault(name, wanted) != wanted:",
        "if False:",
        f"{REFUSALS}::test_what_a_format_cannot_say_is_refused[stpu-sigmoid-scale]",
    ),
    Mutation(
        "two-quantizers-on-a-tensor", SIDE,
        "if _qparams(other) != _qparams(site):",
        "if False:",
        f"{REFUSALS}::test_two_quantizers_on_one_tensor_are_refused",
    ),
    Mutation(
        "together-the-last-wins", TOGETHER,
        "if name in files:",
        "if False:",
        f"{REFUSALS}::test_together_gives_the_files_of_all",
    ),
)  # fmt: skip
