"""Breakages of the estimators by range and by moments, and of the laws that check all estimators."""

from mutants.mutation import Mutation

EMA, MINMAX, MOMENTS, STD_CLIP, SCALE, LSQ, LSQ_PLUS = (
    f"qfunc/estimators/{name}.py"
    for name in ("ema", "minmax", "moments", "std_clip", "initial_scale", "lsq_init", "lsq_plus_init")
)
RANGES, MEANS = "tests/estimators/test_minmax_ema.py", "tests/estimators/test_moment_estimators.py"
MQBENCH = "tests/estimators/test_mqbench_observers.py"

ESTIMATORS = (
    # ranges
    Mutation(
        "ema-weights-swapped", EMA,
        "Range(self.decay * old.low + new * seen.low",
        "Range(new * old.low + self.decay * seen.low",
        (f"{RANGES}::test_ema_follows_its_equation", f"{MQBENCH}::test_ema"),
    ),
    Mutation(
        "ema-merge-by-the-wrong-count", EMA,
        "weight = self.decay ** b.batches.double()",
        "weight = self.decay ** a.batches.double()",
        f"{RANGES}::test_ema_merge_respects_the_order",
    ),
    Mutation(
        "ema-merge-in-float32", EMA,
        "(va.double() - fb)",
        "(va - fb)",
        f"{RANGES}::test_ema_merges_ranges_whose_difference_leaves_float32",
    ),
    Mutation(
        "ema-merge-keeps-the-later-first", EMA,
        "_either(a.batches == 0, b.first, a.first)",
        "b.first",
        f"{RANGES}::test_ema_merge_is_an_ordered_monoid",
    ),
    Mutation(
        "ema-first-batch-counts-in-part", EMA,
        "state.batches + 1, _either(empty, seen, state.first))",
        "state.batches + 1, seen)",
        f"{RANGES}::test_ema_merge_is_an_ordered_monoid",
    ),
    Mutation(
        "ema-takes-any-inner", EMA,
        "isinstance(value, type) or not all(",
        "isinstance(value, type) and not all(",
        f"{RANGES}::test_an_inner_estimator_without_a_range_is_refused",
    ),
    Mutation(
        "minmax-forgets", MINMAX,
        "return Range(torch.minimum(state.low, low), torch.maximum(state.high, high))",
        "return Range(low, high)",
        f"{RANGES}::test_minmax_does_not_depend_on_order",
    ),
    # moments
    Mutation(
        "population-std", MOMENTS,
        "(state.number - 1).clamp(min=1)",
        "state.number.clamp(min=1)",
        (f"{MEANS}::test_moments_are_those_of_all_values", f"{MQBENCH}::test_mean_and_std"),
    ),
    Mutation(
        "moments-forget-the-distance-of-means", MOMENTS,
        "squares = a.squares + b.squares + apart * apart * (a.number * share)",
        "squares = a.squares + b.squares",
        f"{MEANS}::test_moments_are_those_of_all_values",
    ),
    Mutation(
        "moments-weigh-parts-alike", MOMENTS,
        "a.mean + apart * share",
        "a.mean + apart / 2",
        f"{MEANS}::test_nothing_is_the_identity",
    ),
    Mutation(
        "moments-without-units", MOMENTS,
        "unit = torch.ldexp(torch.ones_like(low), exponent - 1)",
        "unit = torch.ones_like(low)",
        f"{MEANS}::test_moments_are_those_of_all_values",
    ),
    Mutation(
        "std-clip-widens", STD_CLIP,
        "low = torch.maximum(mean - self.k * std, state.low)",
        "low = torch.minimum(mean - self.k * std, state.low)",
        (f"{MEANS}::test_std_clip_clips_an_outlier_and_never_widens", f"{MQBENCH}::test_mean_and_std"),
    ),
    # initial scales
    Mutation(
        "lsq-without-the-root", LSQ,
        "2 * mean / largest(scheme.format) ** 0.5",
        "2 * mean / largest(scheme.format)",
        (f"{MEANS}::test_lsq_init_is_its_equation", f"{MQBENCH}::test_lsq"),
    ),
    Mutation("lsq-of-the-last-batch", LSQ, "state.total + total", "total", f"{MQBENCH}::test_lsq"),
    Mutation(
        "lsq-plus-divides-by-2-to-the-b", LSQ_PLUS,
        "from_scale(reach / _one_side(scheme.format)",
        "from_scale(reach / (2 * _one_side(scheme.format))",
        f"{MEANS}::test_lsq_plus_init_is_its_equation_in_every_block",
    ),
    Mutation(
        "lsq-plus-one-side-is-qmax", LSQ_PLUS,
        "max(-fmt.qmin, fmt.qmax + 1)",
        "fmt.qmax",
        f"{MEANS}::test_lsq_plus_divides_by_the_codes_of_one_side",
    ),
    Mutation(
        "zero-point-beside-the-codes", SCALE,
        "real = fmt.qmin - low.double().clamp(max=0)",
        "real = -low.double().clamp(max=0)",
        f"{MEANS}::test_lsq_init_keeps_its_zero_point_among_the_codes",
    ),
    Mutation(
        "direct-scales-overflow", SCALE,
        "scale.clamp(max=torch.finfo(torch.float32).max)",
        "scale",
        f"{MEANS}::test_direct_scales_are_ones_that_the_hardware_takes",
    ),
)  # fmt: skip
