"""Breakages of corrections."""

from mutants.mutation import Mutation

HERE, TESTS = "qfunc/corrections", "tests/corrections"

CORRECTIONS = (
    Mutation(
        "ranges-of-one-side", f"{HERE}/balance.py",
        "(first * second).sqrt() / second",
        "first / second",
        f"{TESTS}/test_equalize.py::test_one_pair_is_scaled_by_the_equation",
    ),
    Mutation(
        "one-sweep", f"{HERE}/balance.py",
        "_SWEEPS = 1000",
        "_SWEEPS = 1",
        f"{TESTS}/test_equalize.py::test_both_ranges_of_each_channel_are_equal",
    ),
    Mutation(
        "columns-of-the-wrong-group", f"{HERE}/balance.py",
        "mul_(end.each(by).view(self.groups[end.op.node], 1, -1))",
        "mul_(end.each(by).flip(0).view(self.groups[end.op.node], 1, -1))",
        f"{TESTS}/test_equalize.py::test_both_ranges_of_each_channel_are_equal",
    ),
    Mutation(
        "clips-are-met", f"{HERE}/equalize.py",
        "least = torch.where(share <= 1, torch.maximum(least, share), 1.0)",
        "least = torch.where(share <= 1, least, 1.0)",
        f"{TESTS}/test_float_laws.py::test_clips_stay_and_channels_below_them_are_equalized",
    ),
    Mutation(
        "clipped-channels-scale", f"{HERE}/equalize.py",
        "most = torch.where(share <= 1, most, 1.0)",
        "pass",
        f"{TESTS}/test_float_laws.py::test_clips_stay_and_channels_below_them_are_equalized",
    ),
    Mutation(
        "dead-channels-stretch-the-range", f"{HERE}/equalize.py",
        "least = reach / reach.max().clamp_min(_LEAST)",
        "least = 0 * reach",
        f"{TESTS}/test_equalize.py::test_no_channel_reaches_further_than_the_furthest_did",
    ),
    Mutation(
        "clips-commute", f"{HERE}/commuting.py",
        '_ELEMENTWISE = ("relu",',
        '_ELEMENTWISE = ("clip", "relu",',
        f"{TESTS}/test_equalize.py::test_nothing_to_equalize",
    ),
    Mutation(
        "absorbed-beside-padding", f"{HERE}/absorb.py",
        "if end.op.pads or not all(map(keeps_constants, end.through)):",
        "if not all(map(keeps_constants, end.through)):",
        f"{TESTS}/test_other_corrections.py::test_nothing_is_absorbed_beside_padding",
    ),
    Mutation(
        "smoothed-by-the-mean", f"{HERE}/smooth.py",
        ".amax((0, 2)).double()",
        ".mean((0, 2)).double()",
        f"{TESTS}/test_other_corrections.py::test_smoothed",
    ),
    Mutation(
        "a-bias-of-the-norm-stays", f"{HERE}/norm_weights.py",
        "hold_norm(module, gamma / by, beta / by)",
        "hold_norm(module, gamma / by, beta)",
        f"{TESTS}/test_float_laws.py::test_each_op_stays",
    ),
)  # fmt: skip
