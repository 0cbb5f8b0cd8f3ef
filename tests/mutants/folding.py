"""Breakages of folding and fusing."""

from mutants.mutation import Mutation

FOLD, FUSE, NORMS, WEIGHTED, CONSTANTS, UNITS, JOINED, SETTLED = (
    f"qfunc/graph/{name}.py" for name in ("fold", "fuse", "norms", "weighted", "constants", "units", "joined", "settled")
)
NUMBERS = "tests/graph/test_fold.py::test_the_folded_numbers"
GRID = "tests/graph/test_fold_grid.py::"
BEFORE = f"{GRID}test_a_norm_before_an_op[BatchNorm]"
OWN = "tests/graph/test_fold_own.py::"
COPIED = "tests/graph/test_fold.py::test_a_shared_weight_is_copied"
PATTERNS = "tests/graph/test_fuse_patterns.py::"

FOLDING = (
    Mutation(
        "fold-without-eps", NORMS, "rsqrt(variance.detach().double() + eps)", "rsqrt(variance.detach().double())", NUMBERS
    ),
    Mutation("fold-bias-unscaled", WEIGHTED, "bias * factor + shift", "bias + shift", NUMBERS),
    Mutation(
        "fold-mean-unscaled", NORMS, "shift = -mean.detach().double() * factor", "shift = -mean.detach().double()", NUMBERS
    ),
    Mutation(
        "fold-gamma-dropped", NORMS,
        "factor if weight is None else factor * weight.detach().double()",
        "factor",
        NUMBERS,
    ),
    Mutation(
        "fold-groups-along-the-outputs", WEIGHTED,
        "self._turned(held, self.groups) if",
        "self._turned(held, 1) if",
        "tests/graph/test_fold.py::test_folded[transposed, grouped]",
    ),
    Mutation(
        "fold-over-a-shared-weight", CONSTANTS,
        "if old is not None and len(readers) == 1:",
        "if old is not None:",
        f"{COPIED}_where_not_the_same_is_folded_into_it",
    ),
    Mutation(
        "joined-whatever-is-folded", JOINED,
        "self.made[op.node] += [",
        "[",
        f"{COPIED}_where_not_the_same_is_folded_into_it",
    ),
    Mutation(
        "copies-in-the-order-of-folding", JOINED,
        "for op, holder, value in zip(kept, holders, values, strict=False):",
        "for op, holder, value in zip(kept, [attribute(op, slot) for op in kept], values, strict=False):",
        "tests/graph/test_fold.py::test_a_shared_pair_stays_shared",
    ),
    Mutation(
        "shared-norms-fold-twice", SETTLED,
        "if held_by in fixed:",
        "if False:",
        "tests/training/test_shared_modules.py",
    ),
    Mutation(
        "fold-a-conv-that-is-read-twice", FOLD,
        "if len(readers) > 1:",
        "if False:",
        "tests/graph/test_fold.py::test_a_conv_that_is_read_twice_is_not_folded",
    ),
    Mutation(
        "fold-before-padding", FOLD,
        "if op.pads and",
        "if False and",
        f"{GRID}test_a_norm_that_shifts_does_not_fold_before_padding",
    ),
    Mutation("fold-before-without-the-shift", WEIGHTED, "bias + constant", "bias", BEFORE),
    Mutation(
        "fold-rounds-twice", WEIGHTED,
        "return weight * factor.reshape(",
        "return weight * factor.float().reshape(",
        f"{GRID}test_a_norm_behind_an_op[BatchNorm]",
    ),
    Mutation(
        "written-out-norm-keeps-its-sign", NORMS,
        "(-factor, number - shift)",
        "(factor, number - shift)",
        "tests/graph/test_fold_reversed.py",
    ),
    Mutation(
        "own-fold-where-it-may-not", FOLD,
        "if fusion.when is None or selects(fusion.when, op, self.context):",
        "if True:",
        f"{OWN}test_when_holds_for_folding_too",
    ),
    Mutation(
        "own-fold-unchecked", FOLD,
        "found = _folded(step, weight, bias, given, kwargs, self.context.fact(op.node).path)",
        "found: Any = step.fold(weight.clone(), bias.clone(), *given, **kwargs)",
        f"{OWN}test_what_the_function_returns_is_checked",
    ),
    Mutation(
        "own-fold-in-float32", FOLD,
        "copy.deepcopy(module).double().eval()",
        "copy.deepcopy(module).train()",
        f"{OWN}test_the_module_is_in_evaluation_mode_and_float64",
    ),
    Mutation(
        "misses-of-what-fused", FUSE,
        "if root.get(m.step) is not m.node",
        "if True",
        f"{PATTERNS}test_when_decides_by_structure",
    ),
    Mutation(
        "misses-of-what-must-follow", FUSE,
        "near = fitting or ([] if step.optional else",
        "near = fitting or ([] if True else",
        f"{PATTERNS}test_near_misses_say_why",
    ),
    Mutation(
        "integer-units-forget-a-step", UNITS,
        "elif (left := self._left(group, kernel)) is not None:",
        "elif (left := self._left(group, kernel)) == 0:",
        f"{PATTERNS}test_an_integer_kernel_does_not_swallow_an_activation",
    ),
)  # fmt: skip
