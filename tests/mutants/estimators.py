"""Breakages of the estimators by range and by moments, and of the laws that check all estimators."""

from mutants.mutation import Mutation

ESTIMATORS = (
    # ranges
    Mutation(
        "ema-weights-swapped", "qfunc.estimators.ema:Ema.update",
        "Range(self.decay * old.low + new * batch.low",
        "Range(new * old.low + self.decay * batch.low",
        (
            "tests/estimators/test_minmax_ema.py::test_ema_follows_its_equation",
            "tests/estimators/test_mqbench_observers.py::test_ema",
        ),
    ),
    Mutation(
        "ema-merge-by-the-wrong-count", "qfunc.estimators.ema:Ema.merge",
        "weight = self.decay ** b.batches.double()",
        "weight = self.decay ** a.batches.double()",
        "tests/estimators/test_minmax_ema.py::test_ema_merge_respects_the_order",
    ),
    Mutation(
        "ema-merge-in-float32", "qfunc.estimators.ema:Ema.merge",
        "(va.double() - fb)",
        "(va - fb)",
        "tests/estimators/test_minmax_ema.py::test_ema_merges_ranges_whose_difference_leaves_float32",
    ),
    Mutation(
        "ema-merge-keeps-the-later-first", "qfunc.estimators.ema:Ema.merge",
        "_either(a.batches == 0, b.first, a.first)",
        "b.first",
        "tests/estimators/test_minmax_ema.py::test_ema_merge_is_an_ordered_monoid",
    ),
    Mutation(
        "ema-first-batch-counts-in-part", "qfunc.estimators.ema:Ema.update",
        "state.batches + 1, _either(empty, batch, state.first))",
        "state.batches + 1, batch)",
        "tests/estimators/test_minmax_ema.py::test_ema_merge_is_an_ordered_monoid",
    ),
    Mutation(
        "ema-takes-any-inner", "qfunc.estimators.ema:_inner",
        "isinstance(value, type) or not all(",
        "isinstance(value, type) and not all(",
        "tests/estimators/test_minmax_ema.py::test_an_inner_estimator_without_a_range_is_refused",
    ),
    Mutation(
        "minmax-forgets", "qfunc.estimators.minmax:MinMax.update",
        "return Range(torch.minimum(state.low, low), torch.maximum(state.high, high))",
        "return Range(low, high)",
        "tests/estimators/test_minmax_ema.py::test_minmax_does_not_depend_on_order",
    ),
    # moments
    Mutation(
        "population-std", "qfunc.estimators.moments:mean_and_std",
        "(state.number - 1).clamp(min=1)",
        "state.number.clamp(min=1)",
        (
            "tests/estimators/test_moment_estimators.py::test_moments_are_those_of_all_values",
            "tests/estimators/test_mqbench_observers.py::test_mean_and_std",
        ),
    ),
    Mutation(
        "moments-forget-the-distance-of-means", "qfunc.estimators.moments:merged",
        "squares = a.squares + b.squares + difference * difference * (a.number * share)",
        "squares = a.squares + b.squares",
        "tests/estimators/test_moment_estimators.py::test_moments_are_those_of_all_values",
    ),
    Mutation(
        "moments-weigh-parts-alike", "qfunc.estimators.moments:merged",
        "a.mean + difference * share",
        "a.mean + difference / 2",
        "tests/estimators/test_moment_estimators.py::test_nothing_is_the_identity",
    ),
    Mutation(
        "moments-without-units", "qfunc.estimators.moments:in_units",
        "unit = torch.ldexp(torch.ones_like(low), exponent - 1)",
        "unit = torch.ones_like(low)",
        "tests/estimators/test_moment_estimators.py::test_moments_are_those_of_all_values",
    ),
    Mutation(
        "std-clip-widens", "qfunc.estimators.std_clip:StdClip.range",
        "low = torch.maximum(mean - self.k * std, state.low)",
        "low = torch.minimum(mean - self.k * std, state.low)",
        (
            "tests/estimators/test_moment_estimators.py::test_std_clip_clips_an_outlier_and_never_widens",
            "tests/estimators/test_mqbench_observers.py::test_mean_and_std",
        ),
    ),
    # initial scales
    Mutation(
        "lsq-without-the-root", "qfunc.estimators.lsq_init:LsqInit.finalize",
        "2 * mean / largest_above_zero(scheme) ** 0.5",
        "2 * mean / largest_above_zero(scheme)",
        (
            "tests/estimators/test_moment_estimators.py::test_lsq_init_is_its_equation",
            "tests/estimators/test_mqbench_observers.py::test_lsq",
        ),
    ),
    Mutation(
        "lsq-of-the-last-batch", "qfunc.estimators.lsq_init:LsqInit.update",
        "state.total + total",
        "total",
        "tests/estimators/test_mqbench_observers.py::test_lsq",
    ),
    Mutation(
        "lsq-plus-divides-by-2-to-the-b", "qfunc.estimators.lsq_plus_init:LsqPlusInit.finalize",
        "from_scale(reach / _longer_side(scheme.format)",
        "from_scale(reach / (2 * _longer_side(scheme.format))",
        "tests/estimators/test_moment_estimators.py::test_lsq_plus_init_is_its_equation_in_every_block",
    ),
    Mutation(
        "lsq-plus-one-side-is-qmax", "qfunc.estimators.lsq_plus_init:_longer_side",
        "max(-fmt.qmin, fmt.qmax + 1)",
        "fmt.qmax",
        "tests/estimators/test_moment_estimators.py::test_lsq_plus_divides_by_the_codes_of_one_side",
    ),
    Mutation(
        "zero-point-beside-the-codes", "qfunc.estimators.initial_scale:from_scale",
        "round_by(fmt.qmin + below, rule.rounding)",
        "round_by(below, rule.rounding)",
        "tests/estimators/test_moment_estimators.py::test_lsq_init_divides_the_codes_between_the_signs",
    ),
    Mutation(
        "zero-point-at-the-end-of-few-codes", "qfunc.estimators.initial_scale:from_scale",
        "below = torch.minimum(needed, share.double() * (fmt.qmax - fmt.qmin))",
        "below = needed",
        "tests/estimators/test_moment_estimators.py::test_no_zero_point_of_lsq_has_half_the_error",
    ),
    Mutation(
        "direct-scales-overflow", "qfunc.estimators.initial_scale:from_scale",
        "scale.clamp(max=torch.finfo(torch.float32).max)",
        "scale",
        "tests/estimators/test_moment_estimators.py::test_direct_scales_are_ones_that_the_hardware_takes",
    ),
)  # fmt: skip
