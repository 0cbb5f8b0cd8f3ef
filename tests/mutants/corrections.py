"""Breakages of corrections."""

from mutants.mutation import Mutation

CORRECTIONS = (
    Mutation(
        "ranges-of-one-side", "qfunc.corrections.equalize:_Ranges.step",
        "(first * second).sqrt() / second",
        "first / second",
        "tests/corrections/test_equalize.py::test_one_pair_is_scaled_by_the_equation",
    ),
    Mutation(
        "one-sweep", "qfunc.corrections.equalize:_SWEEPS",
        "_SWEEPS = 1000",
        "_SWEEPS = 1",
        "tests/corrections/test_equalize.py::test_both_ranges_of_each_channel_are_equal",
    ),
    Mutation(
        "columns-of-the-wrong-group", "qfunc.corrections.equalize:_Ranges.scale",
        "mul_(end.each(by).view(self.groups[end.op.node], 1, -1))",
        "mul_(end.each(by).flip(0).view(self.groups[end.op.node], 1, -1))",
        "tests/corrections/test_equalize.py::test_both_ranges_of_each_channel_are_equal",
    ),
    Mutation(
        "clips-are-met", "qfunc.corrections.equalize:_bounds",
        "least = torch.where(share <= 1, torch.maximum(least, share), 1.0)",
        "least = torch.where(share <= 1, least, 1.0)",
        "tests/corrections/test_float_laws.py::test_clips_stay_and_channels_below_them_are_equalized",
    ),
    Mutation(
        "clipped-channels-scale", "qfunc.corrections.equalize:_bounds",
        "most = torch.where(share <= 1, most, 1.0)",
        "pass",
        "tests/corrections/test_float_laws.py::test_clips_stay_and_channels_below_them_are_equalized",
    ),
    Mutation(
        "dead-channels-stretch-the-range", "qfunc.corrections.equalize:_bounds",
        "least = constant / constant.max().clamp_min(_LEAST)",
        "least = 0 * constant",
        "tests/corrections/test_equalize.py::test_no_constant_part_exceeds_the_largest_one",
    ),
    Mutation(
        "clips-commute", "qfunc.corrections.channel_scaling:output_layout",
        "scales = has(node, Trait.SCALES_WITH_CHANNELS)",
        "scales = has(node, Trait.SCALES_WITH_CHANNELS) or has(node, Trait.CLAMPS)",
        "tests/corrections/test_equalize.py::test_nothing_to_equalize",
    ),
    Mutation(
        "absorbed-beside-padding", "qfunc.corrections.absorb:_why_not",
        "if end.op.pads or not all(map(keeps_constants, end.through)):",
        "if not all(map(keeps_constants, end.through)):",
        "tests/corrections/test_other_corrections.py::test_nothing_is_absorbed_beside_padding",
    ),
    Mutation(
        "gains-are-lost", "qfunc.corrections.rotation.rotate:_Layers.read",
        "weight if gain is None else weight * gain",
        "weight",
        "tests/corrections/test_rotate.py::test_each_op_stays",
    ),
    Mutation(
        "rounded-without-factors", "qfunc.corrections.migration.awq:_error",
        ".double() / by",
        ".double()",
        "tests/corrections/test_awq.py::test_the_factors_are_those_of_the_best_of_all_networks",
    ),
    Mutation(
        "smoothed-by-the-mean", "qfunc.corrections.migration.smooth:_Maxima._add",
        ".amax((0, 2)).double()",
        ".mean((0, 2)).double()",
        "tests/corrections/test_other_corrections.py::test_smoothed",
    ),
    Mutation(
        "a-bias-of-the-norm-stays", "qfunc.corrections.scalable_ops:divide_norm",
        "store_norm(module, gamma / by, beta / by)",
        "store_norm(module, gamma / by, beta)",
        "tests/corrections/test_float_laws.py::test_each_op_stays",
    ),
)  # fmt: skip
