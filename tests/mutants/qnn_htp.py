"""Breakages of the HTP's artifact and of what is refused of it, caught where its emulator is not installed."""

from mutants.mutation import Mutation

LEFT = "tests/lowering/qnn/test_qnn_htp_lowering.py::test_of_a_bound_there_are_the_codes_that_it_cuts_off"
STEPS = "tests/lowering/qnn/test_qnn_htp_lowering.py::test_products_of_2_to_the_8_steps_or_more_are_refused"
DEPTHWISE = "tests/lowering/qnn/test_qnn_htp.py::test_depthwise_convolutions_that_the_htp_has_not"
BIAS = "tests/lowering/qnn/test_qnn_htp_lowering.py::test_a_bias_has_as_many_scales_as_its_weight"
SHOWN = "tests/lowering/qnn/test_qnn_htp_lowering.py::test_a_relu_that_is_an_output_in_float_stays_one"
RIGHT = "tests/lowering/qnn/test_qnn_htp.py::test_windows_that_the_htp_gets_right"

QNN_HTP = (
    Mutation(
        "htp-bounds-from-below-alone", "qfunc.targets.qnn_htp.rewrite:_CodeBounds.nodes",
        '("Min", "below", self.limits.max)',
        '("Min", "below", self.limits.min)',
        LEFT,
    ),
    Mutation(
        "htp-relu-has-no-bound", "qfunc.lowering.qdq.reader:QdqModel.bounds",
        "return 0.0, None",
        "return None, None",
        LEFT,
    ),
    Mutation(
        "htp-bounds-without-the-zero-point", "qfunc.targets.qnn_htp.rewrite:_CodeBounds.__init__",
        "np.rint(np.float32(b) / scale) + zero",
        "np.rint(np.float32(b) / scale)",
        LEFT,
    ),
    Mutation(
        "htp-bounds-wrap-around", "qfunc.targets.qnn_htp.rewrite:_CodeBounds.__init__",
        "np.clip(c, self.limits.min, self.limits.max).astype",
        "np.asarray(c).astype",
        LEFT,
    ),
    Mutation(
        "htp-bounds-that-cut-nothing-stay", "qfunc.targets.qnn_htp.rewrite:_CodeBounds.nodes",
        "if code is None or code == limit:",
        "if code is None:",
        LEFT,
    ),
    Mutation(
        "htp-relu-that-is-an-output-goes", "qfunc.lowering.qdq.reader:QdqModel.only_reader",
        " and name not in self.outputs",
        "",
        SHOWN,
    ),
    Mutation(
        "htp-equal-bias-scales-stay", "qfunc.targets.qnn_htp.lowering:QnnHtpLowering.lower",
        "        share_bias_scale(rewritten)",
        "        pass",
        BIAS,
    ),
    Mutation(
        "htp-one-bias-scale-for-all", "qfunc.targets.qnn_htp.rewrite:share_bias_scale",
        "source.initializers[weight.input[1]].dims or not",
        "not",
        BIAS,
    ),
    Mutation(
        "htp-takes-any-product", "qfunc.targets.qnn_htp.lowering:QnnHtpLowering.lower",
        "        require_scales(rewritten)",
        "        pass",
        STEPS,
    ),
    Mutation(
        "htp-takes-products-of-2-to-the-8", "qfunc.targets.qnn_htp.constraints:_require_scale",
        ">= LIMIT", "> LIMIT", STEPS,
    ),
    Mutation(
        "htp-products-by-the-smallest-scale", "qfunc.targets.qnn_htp.constraints:_require_scale",
        "np.max(source.constants[n.input[1]])",
        "np.min(source.constants[n.input[1]])",
        STEPS,
    ),
    Mutation(
        "htp-products-without-the-outputs-scale", "qfunc.targets.qnn_htp.constraints:_require_scale",
        "x * weight / y",
        "x * weight",
        STEPS,
    ),
    Mutation(
        "htp-pools-that-lie-apart", "qfunc.targets.qnn_htp.constraints:has_tiles_beyond_border",
        "return is_tiled and bool(padded",
        "return bool(padded",
        RIGHT,
    ),
    Mutation(
        "htp-conv-sees-by-the-kernel-alone", "qfunc.targets.qnn_htp.constraints:has_window_of_padding",
        "p > d * (k - 1) for",
        "p > k - 1 for",
        RIGHT,
    ),
    Mutation(
        "htp-output-padding-below-the-padding", "qfunc.targets.qnn_htp.constraints:has_unreached_border",
        "any(o > p for",
        "any(o >= p for",
        RIGHT,
    ),
    Mutation(
        "htp-strides-over-holes", "qfunc.targets.qnn_htp.constraints:is_strided_and_dilated",
        'max(attributes["dilation"]) > 1 and not supported',
        "False",
        DEPTHWISE,
    ),
    Mutation(
        "htp-no-strides-over-holes", "qfunc.targets.qnn_htp.constraints:is_strided_and_dilated",
        " and not supported",
        "",
        DEPTHWISE,
    ),
    Mutation(
        "htp-depthwise-of-any-outputs", "qfunc.targets.qnn_htp.constraints:has_one_output_per_channel",
        ' and attributes["out_channels"] == attributes["groups"]',
        "",
        DEPTHWISE,
    ),
    Mutation(
        "htp-small-windows-of-many-channels", "qfunc.targets.qnn_htp.constraints:has_small_strided_window",
        'and attributes["groups"] <= 4 and',
        "and",
        DEPTHWISE,
    ),
    Mutation(
        "htp-small-windows-by-two", "qfunc.targets.qnn_htp.constraints:has_small_strided_window",
        'attributes["kernel"] in ((1, 1), (2, 2))',
        'attributes["kernel"] == (1, 1)',
        DEPTHWISE,
    ),
)  # fmt: skip

__all__ = ["QNN_HTP"]
