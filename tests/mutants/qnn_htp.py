"""Breakages of the HTP's artifact and of what is refused of it, caught where its emulator is not installed."""

from mutants.mutation import Mutation

QDQ, WINDOWS, SCALES = (f"qfunc/lowering/htp_{name}.py" for name in ("qdq", "legality", "scales"))
FILE, TESTS = "tests/lowering/test_htp_qdq.py", "tests/targets/test_qnn_htp.py"
LEFT = f"{FILE}::test_of_a_bound_there_are_the_codes_that_it_cuts_off"
STEPS = f"{FILE}::test_products_of_2_to_the_8_steps_or_more_are_refused"
DEPTHWISE = f"{TESTS}::test_depthwise_convolutions_that_the_htp_has_not"
BIAS, SHOWN = (
    f"{FILE}::test_{name}"
    for name in ("a_bias_has_as_many_scales_as_its_weight", "a_relu_that_is_an_output_in_float_stays_one")
)
RIGHT = f"{TESTS}::test_windows_that_the_htp_gets_right"

QNN_HTP = (
    Mutation("htp-bounds-from-below-alone", QDQ, '("Min", "below", self.ends.max)', '("Min", "below", self.ends.min)', LEFT),
    Mutation(
        "htp-relu-has-no-bound",
        QDQ,
        'if node.op_type == "Clip" else [0.0, None]',
        'if node.op_type == "Clip" else [None, None]',
        LEFT,
    ),
    Mutation(
        "htp-bounds-without-the-zero-point",
        QDQ,
        "np.rint(np.float32(b) / scale) + zero",
        "np.rint(np.float32(b) / scale)",
        LEFT,
    ),
    Mutation("htp-bounds-wrap-around", QDQ, "np.clip(c, self.ends.min, self.ends.max).astype", "np.asarray(c).astype", LEFT),
    Mutation("htp-bounds-that-cut-nothing-stay", QDQ, "if code is None or code == end:", "if code is None:", LEFT),
    Mutation("htp-relu-that-is-an-output-goes", QDQ, " and node.output[0] not in outputs", "", SHOWN),
    Mutation("htp-equal-bias-scales-stay", QDQ, "        _one_bias_scale(made.graph)", "        pass", BIAS),
    Mutation("htp-one-bias-scale-for-all", QDQ, "held[weight.input[1]].dims or not", "not", BIAS),
    Mutation("htp-takes-any-product", QDQ, "        require_scales(made.graph)", "        pass", STEPS),
    Mutation("htp-takes-products-of-2-to-the-8", SCALES, ">= LIMIT", "> LIMIT", STEPS),
    Mutation("htp-products-by-the-smallest-scale", SCALES, "np.max(held[n.input[1]])", "np.min(held[n.input[1]])", STEPS),
    Mutation("htp-products-without-the-outputs-scale", SCALES, "x * weight / y", "x * weight", STEPS),
    Mutation("htp-pools-that-lie-apart", WINDOWS, "return side_by_side and bool(padded", "return bool(padded", RIGHT),
    Mutation("htp-conv-sees-by-the-kernel-alone", WINDOWS, "p > d * (k - 1) for", "p > k - 1 for", RIGHT),
    Mutation("htp-output-padding-below-the-padding", WINDOWS, "any(o > p for", "any(o >= p for", RIGHT),
    Mutation("htp-strides-over-holes", WINDOWS, 'max(has["dilation"]) > 1 and not taken', "False", DEPTHWISE),
    Mutation("htp-no-strides-over-holes", WINDOWS, " and not taken", "", DEPTHWISE),
    Mutation("htp-depthwise-of-any-outputs", WINDOWS, ' and has["out_channels"] == has["groups"]', "", DEPTHWISE),
    Mutation("htp-small-windows-of-many-channels", WINDOWS, 'and has["groups"] <= 4 and', "and", DEPTHWISE),
    Mutation("htp-small-windows-by-two", WINDOWS, 'has["kernel"] in ((1, 1), (2, 2))', 'has["kernel"] == (1, 1)', DEPTHWISE),
)

__all__ = ["QNN_HTP"]
