"""Breakages of the diagnosis."""

from mutants.mutation import Mutation

FIRST = "tests/diagnosis/test_diagnose.py::test_the_planted_cause_is_first_and_is_removed"

DIAGNOSIS = (
    Mutation(
        "causes-in-the-order-of-their-functions", "qfunc.diagnosis.study:Study._causes",
        "found.sort(key=lambda entry: -round(",
        "found.sort(key=lambda entry: round(",
        FIRST,
    ),
    Mutation(
        "a-plan-forgets-its-corrections", "qfunc.diagnosis.plan:Setting.calibrated",
        "for correction in plan.before:",
        "for correction in ():",
        FIRST,
    ),
    Mutation(
        "recalibration-on-the-old-batches", "qfunc.diagnosis.plan:Setting.calibrated",
        "batches = self.batches if plan.evaluated else self.calibration",
        "batches = self.calibration",
        FIRST,
    ),
    Mutation(
        "the-share-of-what-is-left", "qfunc.diagnosis.scoring:Score.recovered",
        "return 1.0 - self.loss / base.loss",
        "return self.loss / base.loss",
        FIRST,
    ),
    Mutation(
        "channels-along-the-batch", "qfunc.diagnosis.evidence:largest_by_channel",
        "for axis in (1, 2) if value.ndim == 3 else (1,):",
        "for axis in (0,):",
        FIRST,
    ),
    Mutation(
        "a-budget-without-integers", "qfunc.diagnosis.report:Diagnosis.choose",
        "t.integer >= integer if integer is not None",
        "True if integer is not None",
        "tests/diagnosis/test_diagnose.py::test_a_budget_counts_the_share_on_integers",
    ),
    Mutation(
        "a-budget-without-latency", "qfunc.diagnosis.report:Diagnosis.choose",
        "t.latency <= latency)",
        "t.latency > 0)",
        "tests/diagnosis/test_latency.py::test_a_budget_of_latency_takes_the_most_accurate_plan_within",
    ),
    Mutation(
        "rounding-of-what-has-a-cause", "qfunc.diagnosis.evidence:Evidence.rest",
        " and r.tensor not in self.explained",
        "",
        "tests/diagnosis/test_diagnose.py::test_a_site_has_a_cause_or_rounding",
    ),
    Mutation(
        "the-mean-of-the-runs", "qfunc.diagnosis.latency:fastest_in_turns",
        "return [min(times[_WARM:]) for times in taken]",
        "return [max(times) for times in taken]",
        "tests/diagnosis/test_latency.py::test_the_least_of_the_runs_counts",
    ),
    Mutation(
        "float-products-on-integers", "qfunc.analysis.integer_share:integer_share",
        "integer = {n.name for u in units if u.integer for n in u.group.nodes}",
        "integer = {n.name for u in units for n in u.group.nodes}",
        "tests/diagnosis/test_diagnose.py::test_a_budget_counts_the_share_on_integers",
    ),
    Mutation(
        "a-concat-in-float-ties", "qfunc.placement.place:_Placement._ties",
        ' or self.rules.keep_float(group, "input")',
        "",
        "tests/diagnosis/test_diagnose.py::test_a_concat_in_float_ties_nothing",
    ),
    Mutation(
        "bit-exact-without-integers", "qfunc.analysis.verification_report:Report.verdict",
        'self._agreement.removeprefix(f"{self._exactly}: ")',
        "self._agreement",
        "tests/analysis/test_verdicts.py::test_verdicts",
    ),
    Mutation(
        "a-share-that-rounds-to-all", "qfunc.analysis.integer_share:percentage",
        "1000 * part // total",
        "round(1000 * part / total)",
        "tests/analysis/test_verdicts.py::test_verdicts",
    ),
    Mutation(
        "float-products-counted-as-integer", "qfunc.transforms.verification.check:Verification.report",
        "in_float = {u.tensor for u in self.partition.units if not u.integer}",
        "in_float = set()",
        "tests/analysis/test_verdicts.py::test_products_in_float_are_counted",
    ),
    Mutation(
        "formats-without-a-kernel-pass", "qfunc.placement.kernels:refused_formats",
        "if not _takes(kernel, [(s, e)])}",
        "if False}",
        "tests/analysis/test_unmet_requests.py::test_formats_without_a_kernel",
    ),
    Mutation(
        "narrow-weights-are-refused", "qfunc.placement.kernels:refused_formats",
        "if not _takes(kernel, [(s, e)])}",
        "if s in taken and e.format not in taken[s]}",
        "tests/analysis/test_unmet_requests.py::test_no_warning_where_nothing_is_lost",
    ),
    Mutation(
        "a-warning-at-every-tie", "qfunc.execution.tensor_ranges.losses:_narrowest",
        "if factor <= UNLIKE or",
        "if factor <= 1 or",
        "tests/analysis/test_unmet_requests.py::test_no_warning_where_ranges_are_alike_or_not_tied",
    ),
    Mutation(
        "ranges-of-the-last-batch", "qfunc.execution.observers:Observer.observe",
        "union(self.ranges.get(name), range_of(value))",
        "union(None, range_of(value))",
        "tests/analysis/test_unmet_requests.py::test_tied_tensors_of_unlike_ranges",
    ),
    Mutation(
        "ranges-of-one-rank", "qfunc.execution.distributed:merge",
        "observer.ranges[name] = union(observer.ranges.get(name), span.to(observer.device))",
        "pass",
        "tests/execution/test_distributed.py::test_unlike_ranges_are_those_of_both_ranks",
    ),
    Mutation(
        "a-slice-has-no-tie", "qfunc.execution.tensor_ranges.parts:_tied",
        "while part.name not in static and len(part.all_input_nodes) == 1:",
        "while False:",
        "tests/execution/test_range_warnings.py::test_a_part_that_keeps_few_codes_is_named_and_no_other",
    ),
)  # fmt: skip
