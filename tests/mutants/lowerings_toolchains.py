"""Breakages of the lowerings of TensorRT, SNPE, PPL, PPL-CUDA and STPU."""

from mutants.mutation import Mutation

RANGES = "tests/lowering/toolchains/test_vendor_files.py::test_the_ranges_are_those_of_the_fake_quantizers"
EXPONENTS = "tests/lowering/toolchains/test_vendor_formats.py::test_exponents_and_biases_of_stpu"
FOLDED = "tests/lowering/toolchains/test_vendor_formats.py::test_a_product_is_folded_where_no_one_else_sees_it"

LOWERINGS_TOOLCHAINS = (
    Mutation(
        "clip-range-of-the-lowest-code", "qfunc.targets.tensorrt.lowering:_range",
        "return site.scale[0] * 127",
        "return -site.minimum[0]",
        "tests/lowering/toolchains/test_vendor_formats.py::test_the_scale_of_tensorrt_is_ours_with_and_without_the_code_below",
    ),
    Mutation(
        "weights-among-the-blobs", "qfunc.targets.tensorrt.lowering:TensorRtRanges.lower",
        'if s.role == "activation"}',
        'if s.role != "bias"}',
        "tests/lowering/toolchains/test_vendor_files.py::test_stored_weights_are_the_quantized_ones[tensorrt]",
    ),
    Mutation(
        "offsets-of-the-other-sign", "qfunc.targets.snpe.lowering:_Encoding.__init__",
        "[stored.qmin - z for z in self.zeros]",
        "[stored.qmin + z for z in self.zeros]",
        "tests/lowering/toolchains/test_vendor_formats.py::test_signs_and_offsets_of_zero_points",
    ),
    Mutation(
        "offsets-of-the-narrow-code", "qfunc.targets.snpe.lowering:_Encoding.__init__",
        "[stored.qmin - z for z in self.zeros]",
        "[fmt.qmin - z for z in self.zeros]",
        "tests/lowering/toolchains/test_vendor_formats.py::test_encodings_per_channel",
    ),
    Mutation(
        "maximum-a-step-too-high", "qfunc.targets.snpe.lowering:_Encoding.v0",
        "(offset + (1 << self.bits) - 1)",
        "(offset + (1 << self.bits))",
        RANGES, case="snpe-encodings_0",
    ),
    Mutation(
        "symmetric-whatever-the-sign", "qfunc.targets.snpe.lowering:_Encoding.__init__",
        "self.symmetric = fmt.signed and not any(self.zeros)",
        "self.symmetric = not any(self.zeros)",
        RANGES, case="snpe-encodings_0",
    ),
    Mutation(
        "weights-among-the-activations", "qfunc.targets.snpe.lowering:_Encoding.__init__",
        'self.activation, self.bits = tensor, site.role == "activation", fmt.bits',
        'self.activation, self.bits = tensor, site.role != "bias", fmt.bits',
        "tests/lowering/toolchains/test_vendor_formats.py::test_encodings_per_channel",
    ),
    Mutation(
        "bias-encodings-a-channel", "qfunc.targets.snpe.lowering:_Encoding.__init__",
        "count = 1 if uniform else len(site.scale)",
        "count = len(site.scale)",
        "tests/lowering/toolchains/test_vendor_formats.py::test_a_derived_bias_has_as_many_encodings_as_its_weight_scales",
    ),
    Mutation(
        "ppl-one-of-many-channels", "qfunc.targets.ppl_w8a16.lowering:_entry",
        "if site.axis is None:",
        "if True:",
        "tests/lowering/toolchains/test_vendor_formats.py::test_ppl_has_lists_over_channels_and_bits_of_the_type",
    ),
    Mutation(
        "ppl-cuda-the-highest-code", "qfunc.targets.ppl_cuda.lowering:_largest",
        "return max(-site.minimum[0], site.maximum[0])",
        "return site.maximum[0]",
        RANGES, case="ppl_cuda-ppl_cuda",
    ),
    Mutation(
        "transposed-weights-as-others", "qfunc.targets.stpu.ranges:StpuRanges._products",
        'if node.op_type == "Conv":',
        "if True:",
        "tests/lowering/toolchains/test_vendor_formats.py::test_a_transposed_convolution_sums_over_its_inputs",
    ),
    Mutation(
        "exponents-of-the-output-alone", "qfunc.targets.stpu.ranges:StpuRanges._emin",
        'exponent(max(total, entry["max"])) - 10',
        'exponent(entry["max"]) - 10',
        EXPONENTS,
    ),
    Mutation(
        "folded-with-the-sign", "qfunc.targets.stpu.ranges:StpuRanges._fold",
        "self.weights[conv.input[1]] * abs(scalar)",
        "self.weights[conv.input[1]] * scalar",
        RANGES, case="stpu-stpu",
    ),
    Mutation(
        "folded-without-the-bias", "qfunc.targets.stpu.ranges:StpuRanges._fold",
        "for index in range(1, len(conv.input)):",
        "for index in (1,):",
        "tests/lowering/toolchains/test_vendor_files.py::test_a_toolchain_that_obeys_the_files_computes_the_simulation[stpu-stpu]",
    ),
    Mutation(
        "shared-weights-folded-in-place", "qfunc.targets.stpu.ranges:StpuRanges._multiply",
        "target = name if self.source.uses(name) == 1 else",
        "target = name if True else",
        FOLDED,
    ),
    Mutation(
        "relu-keeps-its-range-to-itself", "qfunc.targets.stpu.ranges:StpuRanges._propagate",
        'node.op_type in ("Relu", "Clip")',
        "node.op_type in ()",
        EXPONENTS,
    ),
    Mutation(
        "concat-of-any-ranges", "qfunc.targets.stpu.ranges:StpuRanges._require_same_range",
        "if self.largest.setdefault(name, wanted) != wanted:",
        "if False:",
        "tests/lowering/toolchains/test_vendor_refusals.py::test_what_a_format_cannot_say_is_refused[stpu-sigmoid-scale]",
    ),
    Mutation(
        "two-quantizers-on-a-tensor", "qfunc.lowering.side_file:by_tensor",
        "if _qparams(other) != _qparams(site):",
        "if False:",
        "tests/lowering/toolchains/test_vendor_refusals.py::test_two_quantizers_on_one_tensor_are_refused",
    ),
    Mutation(
        "together-the-last-wins", "qfunc.lowering.combination:Combined.lower",
        "if name in files:",
        "if False:",
        "tests/lowering/toolchains/test_vendor_refusals.py::test_together_gives_the_files_of_all",
    ),
)  # fmt: skip
