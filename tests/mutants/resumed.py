"""Breakages of calibrations that go on."""

from mutants.mutation import Mutation

RESUMED = (
    Mutation(
        "a-stored-batch-runs-again",
        "qfunc.execution.stored_statistics:StoredStatistics.has",
        "stored = number <= self.count",
        "stored = number < self.count",
        "tests/execution/test_resumed_calibration.py::test_it_goes_on_after_the_last_stored_batch",
    ),
    Mutation(
        "statistics-of-other-weights",
        "qfunc.execution.stored_statistics:_key",
        " + value.view(torch.uint8).numpy().tobytes()",
        "",
        "tests/execution/test_resumed_calibration.py::test_statistics_of_another_model_are_refused",
    ),
    Mutation(
        "statistics-deleted-before-the-search",
        "qfunc.transforms.calibrate:Calibration._calibrated",
        "results = _results(models, views, runs)",
        "results = (stored.remove(), _results(models, views, runs))[1]",
        "tests/execution/test_resumed_calibration.py::test_a_search_for_qparams_that_is_stopped",
    ),
    Mutation(
        "any-class-of-named-tuples",
        "qfunc.files.values:decode",
        "if not rest and name in classes:",
        "if not rest:",
        "tests/execution/test_resumed_calibration.py::test_damaged_files",
    ),
    Mutation(
        "statistics-of-other-batches",
        "qfunc.execution.stored_statistics:StoredStatistics.has",
        "self.seen.hexdigest() != wanted",
        "False",
        "tests/execution/test_resumed_calibration.py::test_other_batches_than_the_stored_ones_are_refused",
    ),
    Mutation(
        "statistics-written-in-place",
        "qfunc.files.whole:_draft",
        'draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")',
        "draft = path",
        "tests/execution/test_killed_calibration.py::test_a_killed_process",
    ),
    Mutation(
        "stored-batches-in-the-rate",
        "qfunc.execution.progress:Progress.skip",
        "self.working = self.clock()",
        "pass",
        "tests/execution/test_progress.py::test_parts_that_were_done_before_have_no_share_in_the_rate",
    ),
)
