"""Wrong facts of the K210's KPU, caught by a KPU in plain integers that reads the artifact's tables."""

from mutants.mutation import Mutation

LAYERS = "tests/targets/test_k210.py::test_each_layer_is_that_of_the_simulator"

K210 = (
    Mutation(
        "the-first-stage-adds-one", "qfunc.targets.k210.stage_functions:requantize_stages",
        "value = shift_right(acc.long() * m, e, roundings[0]) + b",
        "value = shift_right(acc.long() * m, e, roundings[0]) + b + 2**20",
        LAYERS,
    ),
    Mutation(
        "ties-of-the-table-go-up", "qfunc.targets.k210.stages:KPU",
        'SegmentStage("half_even"',
        'SegmentStage("half_up"',
        "tests/targets/test_k210.py::test_ties_go_to_even_steps_from_the_start_of_the_segment",
    ),
    Mutation(
        "ties-go-to-even-codes", "qfunc.targets.k210.stage_functions:stage_numbers",
        "((low - zero) << headroom, n, f, low)]",
        "((low + low % 2 - zero) << headroom, n, f, low + low % 2)]",
        "tests/targets/test_k210.py::test_the_tables_start_at_the_lowest_code",
    ),
    Mutation(
        "weights-have-no-zero-point", "qfunc.targets.k210.tables:_entry",
        '"arg_x": -zero_w,',
        '"arg_x": 0,',
        "tests/targets/test_k210.py::test_the_tables_have_the_widths_of_the_registers",
    ),
    Mutation(
        "clamps-are-left-to-the-codes", "qfunc.targets.k210.stage_functions:stage_numbers",
        "if high < ends[1]:",
        "if False:",
        LAYERS,
    ),
    Mutation(
        "channels-without-end", "qfunc.targets.k210.target:k210",
        "axes=((1, Span(1, 1024)), (2, Span(4, 256)), (3, Span(4, 512))),",
        "axes=((2, Span(4, 256)), (3, Span(4, 512))),",
        "tests/targets/test_k210.py::test_sizes_that_the_kpu_does_not_take",
    ),
    Mutation(
        "averages-round", "qfunc.targets.k210.target:k210",
        'AverageCodes("floor")',
        'AverageCodes("half_up")',
        "tests/targets/test_k210.py::test_the_chip_keeps_the_laws_of_targets",
    ),
    Mutation(
        "inputs-round-before-their-zero-point", "qfunc.arithmetic.conversions:Plain.codes",
        'if scheme.zero_point is not None and scheme.zero_point.added == "before":',
        "if False:",
        "tests/targets/test_k210.py::test_inputs_round_after_their_zero_point_is_added",
    ),
)  # fmt: skip
