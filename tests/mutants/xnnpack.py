"""Breakages of XNNPACK's ops of real tensors, caught without ExecuTorch."""

from mutants.mutation import Mutation

NEAR = "tests/numerics/test_xnnpack_float.py::test_a_curve_is_near_its_value"
VANISH = "tests/numerics/test_xnnpack_float.py::test_results_that_vanish_are_nothing"
FUSED = "tests/numerics/test_xnnpack_float.py::test_products_are_fused_one_after_the_other"

XNNPACK = (
    Mutation(
        "xnnpack-root-without-heron", "qfunc.targets.executorch.elementary:sqrt",
        "return (s + flushed(x / s.clamp(min=_TINY))) * 0.5",
        "return s",
        NEAR,
    ),
    Mutation(
        "xnnpack-root-of-nothing", "qfunc.targets.executorch.elementary:sqrt",
        "s.clamp(min=_TINY)",
        "s",
        "tests/numerics/test_xnnpack_float.py::test_roots_of_nothing",
    ),
    Mutation(
        "xnnpack-one-part-of-two-pi", "qfunc.targets.executorch.elementary:_turned",
        "for part in _TWO_PI:",
        "for part in _TWO_PI[:1]:",
        "tests/numerics/test_xnnpack_float.py::test_angles_are_within_three_units_of_one",
    ),
    Mutation(
        "xnnpack-logistic-of-half-the-steps", "qfunc.targets.executorch.logistic:sigmoid",
        "(n.view(torch.int32) % _STEPS)",
        "(n.view(torch.int32) % (_STEPS // 2))",
        NEAR,
    ),
    Mutation(
        "xnnpack-mean-by-a-quotient", "qfunc.targets.executorch.rows:mean",
        "total * torch.tensor(1 / len(entries), dtype=torch.float32)",
        "total / len(entries)",
        "tests/numerics/test_xnnpack_float.py::test_a_mean_is_a_sum_in_order_times_a_reciprocal",
    ),
    Mutation(
        "xnnpack-products-rounded-twice", "qfunc.targets.executorch.rows:_along",
        "fma(a[..., k, None], b[..., k, None, :], total)",
        "a[..., k, None] * b[..., k, None, :] + total",
        FUSED,
    ),
    Mutation(
        "xnnpack-bias-comes-last", "qfunc.targets.executorch.rows:linear",
        "_along(input.float()[..., None, :], weight.float().T, bias).squeeze(-2)",
        "_along(input.float()[..., None, :], weight.float().T, None).squeeze(-2) + (0 if bias is None else bias)",
        FUSED,
    ),
    Mutation(
        "xnnpack-products-keep-what-vanishes", "qfunc.targets.executorch.rows:_along",
        "total = flushed(fma(",
        "total = (fma(",
        VANISH,
    ),
    Mutation(
        "xnnpack-exponentials-without-a-cutoff", "qfunc.targets.executorch.logistic:exponentials",
        "torch.where(x < _CUTOFF, 0.0, found)",
        "found",
        VANISH,
    ),
)  # fmt: skip
