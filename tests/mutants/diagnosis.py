"""Breakages of the diagnosis."""

from mutants.mutation import Mutation

FIRST = "tests/diagnosis/test_diagnose.py::test_the_planted_cause_is_first_and_is_removed"

DIAGNOSIS = (
    Mutation(
        "causes-in-the-order-of-their-functions", "qfunc.diagnosis.diagnose:_Study._causes",
        "found.sort(key=lambda entry: entry[:2])",
        "found.sort(key=lambda entry: -entry[1])",
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
        "if t.integer >= integer and t.recovered >= recovered]",
        "if t.recovered >= recovered]",
        "tests/diagnosis/test_diagnose.py::test_a_budget_counts_the_share_on_integers",
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
)  # fmt: skip
