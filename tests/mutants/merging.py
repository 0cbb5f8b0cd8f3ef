"""Breakages of the merging of statistics over processes."""

from mutants.mutation import Mutation

MERGING = (
    Mutation(
        "ranks-out-of-order", "qfunc.execution.distributed:_merge_state",
        "functools.reduce(estimator.merge, states)",
        "functools.reduce(estimator.merge, states[::-1])",
        "tests/execution/test_distributed.py::test_the_range_is_that_of_all_values_and_the_average_runs_in_order_of_rank",
    ),
    Mutation(
        "the-first-rank-decides", "qfunc.execution.distributed:merge",
        "observer.states[index] = _merge_state(observer.states[index], statistic.site.estimator, observer.device, group)",
        "observer.states[index] = _gather(observer.states[index], group)[0]",
        "tests/execution/test_distributed.py::test_two_ranks_are_one_process_over_all_batches",
    ),
    Mutation(
        "inputs-of-the-last-rank", "qfunc.execution.distributed:_first_nonempty",
        "return b if b and (not a or any(0 in i.shape for i in a)) else join_sizes(a, b)",
        "return b if b else a",
        "tests/execution/test_distributed.py::test_two_ranks_are_one_process_over_all_batches",
    ),
    Mutation(
        "reports-of-one-rank", "qfunc.execution.distributed:gather_counts",
        "return ([counts] if group is None else _gather(map_tensors(counts, lambda t: t.detach().cpu()), group)), total",
        "return [counts], total",
        "tests/execution/test_distributed.py::test_reports_and_corrections_are_those_of_one_process",
    ),
    Mutation(
        "an-inner-estimator-without-merge", "qfunc.execution.distributed:_has_merge",
        "return _has_merge(estimator.inner)",
        "return True",
        "tests/execution/test_distributed.py::test_both_ranks_are_told",
    ),
    Mutation(
        "mixed-precision-of-one-rank", "qfunc.transforms.mixed_precision:_Watch.join",
        "if len(states) > 1 and isinstance(self.watch, MergeableWatch):",
        "if len(states) > 9 and isinstance(self.watch, MergeableWatch):",
        "tests/execution/test_distributed.py::test_mixed_precision_is_that_of_one_process",
    ),
    Mutation(
        "learned-scalars-that-cannot-be-sharded", "qfunc.quantizers.fake_quantize:FakeQuantize.__init__",
        "nn.Parameter(value.reshape(1) if name in self.scalars else value)",
        "nn.Parameter(value)",
        "tests/training/test_sharded.py::test_four_processes_train_as_one",
    ),
)  # fmt: skip
