"""Breakages of the estimators that search a histogram."""

from mutants.mutation import Mutation

MERGE = "tests/estimators/test_sketch.py::test_merge_is_exact_and_associative"
COUNTS = "tests/estimators/test_sketch.py::test_counts_are_those_of_a_plain_histogram"
EXHAUSTIVE = "tests/estimators/test_searches.py::test_mse_is_the_exhaustive_search"
RANKS = "tests/estimators/test_searches.py::test_quantiles_are_order_statistics"
TENSORRT = "tests/estimators/test_searches.py::test_entropy_is_tensorrts_loop"
ORT_SEARCH = "tests/estimators/test_searches.py::test_ort_entropy_is_onnx_runtimes"
MANY = "tests/estimators/test_many_blocks.py::test_entropy_of_blocks_is_that_of_each"
VOTES = "tests/estimators/test_searches.py::test_pot_mode_is_the_mode_of_the_batches"

HISTOGRAMS = (
    Mutation(
        "window-moves-one-octave-less", "qfunc.estimators.binning:LogLinear.moved",
        "octaves.long() << MANTISSA)",
        "(octaves.long() - 1) << MANTISSA)",
        (MERGE, COUNTS),
    ),
    Mutation(
        "uniform-bins-do-not-join", "qfunc.estimators.binning:Uniform.moved",
        ">> octaves.long().clamp(max=32)",
        ">> 0 * octaves.long().clamp(max=32)",
        (MERGE, COUNTS),
    ),
    Mutation(
        "lowest-bin-counts-all", "qfunc.estimators.binning:LogLinear.of_patterns",
        "tally.sum(-1, keepdim=True) - upper.sum(-1, keepdim=True)",
        "tally.sum(-1, keepdim=True)",
        COUNTS,
    ),
    Mutation(
        "rows-overlap", "qfunc.estimators.sketch:by_rows",
        "t.reshape(state.low.numel(), *t.shape[state.low.ndim :]) for t in state)",
        "t.reshape(state.low.numel(), *t.shape[state.low.ndim :]).roll(len(t.shape) > state.low.ndim, 0) for t in state)",
        MANY,
    ),
    Mutation(
        "signs-swapped", "qfunc.estimators.sketch:_by_sign",
        "torch.stack((negative.flip(-1), positive), -2)",
        "torch.stack((positive, negative.flip(-1)), -2)",
        COUNTS,
    ),
    Mutation(
        "rank-one-too-low", "qfunc.estimators.quantile:_smallest",
        "max(1, math.ceil(share * n - TOLERANCE))",
        "max(1, math.floor(share * n - TOLERANCE))",
        RANKS,
    ),
    Mutation(
        "clipping-costs-nothing", "qfunc.estimators.error:_summed",
        "code.clamp_(fmt.qmin, fmt.qmax)",
        "code.clamp_(fmt.qmin - 99, fmt.qmax + 99)",
        EXHAUSTIVE,
    ),
    Mutation(
        "wrong-cell", "qfunc.estimators.error:_summed",
        "(1.0 if directed else 2.0**-p) / (p + 1)",
        "1.0 / (p + 1)",
        EXHAUSTIVE,
    ),
    Mutation(
        "narrowest-candidate", "qfunc.estimators.mse:Mse.range",
        "factors = self.widest - (self.widest - 0.05) *",
        "factors = 0.5 - 0.45 *",
        EXHAUSTIVE,
    ),
    Mutation(
        "first-argmin", "qfunc.estimators.entropy:least_divergent",
        "torch.where(best, kept, 0).amax(-1)",
        "torch.where(best, kept, 9999).amin(-1)",
        (TENSORRT, "tests/estimators/test_many_blocks.py::test_the_last_of_equal_divergences_is_kept"),
    ),
    Mutation(
        "first-bin-stays", "qfunc.estimators.entropy:_bins",
        "torch.cat((counts[..., 1:2], counts[..., 1:]), -1).double()",
        "counts.double()",
        TENSORRT,
    ),
    Mutation(
        "ort-forgets-the-tails", "qfunc.estimators.ort_entropy:_divergences",
        "running[-1] - running[end])",
        "0 * running[end])",
        ORT_SEARCH,
    ),
    Mutation(
        "finest-of-a-draw", "qfunc.estimators.pot_mode:PotMode.range",
        "state.votes * slots - torch.arange",
        "state.votes * slots + torch.arange",
        VOTES,
    ),
    Mutation(
        "signed-scale-turns-the-error-round", "qfunc.estimators.error:_summed",
        "total * scale * scale.abs() ** p",
        "total * scale.abs() ** (p + 1)",
        "tests/estimators/test_searches.py::test_mse_of_a_signed_scale_is_the_exhaustive_search",
    ),
    Mutation(
        "later-candidates-hold-less", "qfunc.estimators.error:_reached",
        "ends.amax(0).cummax(0)",
        "ends.amin(0).cummax(0)",
        EXHAUSTIVE,
    ),
)  # fmt: skip
