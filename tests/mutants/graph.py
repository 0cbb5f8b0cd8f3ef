"""Breakages of capture and spellings."""

from mutants.mutation import Mutation

FUNCTIONAL, STORAGE = (f"qfunc/graph/{name}.py" for name in ("functional", "storage"))
SPELLING, REWRITES, VOCABULARY = (f"qfunc/graph/{name}.py" for name in ("spelling", "rewrites", "vocabulary"))

PURE = "tests/graph/test_capture_in_place.py::test_pure_form_equals_eager"
ROAD = "tests/graph/test_capture_spellings.py::test_fx_road"

GRAPH = (
    # in-place writes
    Mutation(
        "in-place-aliases-keep-the-old-value", FUNCTIONAL,
        "self.env[alias] = self.env[node]",
        "pass",
        f"{PURE}[twice-fx]",
    ),
    Mutation("in-place-other-names-forgotten", STORAGE, "names = self._names(target) | {node}", "names = {target, node}", PURE),
    Mutation(
        "in-place-through-a-view-accepted", STORAGE,
        "if any(self.order[user] > late for user in relative.users):",
        "if False:",
        "tests/graph/test_capture_in_place.py::test_refused_with_the_line_of_the_model",
    ),
    Mutation(
        "in-place-module-overlooked", FUNCTIONAL,
        'getattr(module, "inplace", False) is True',
        "False",
        "tests/graph/test_capture_in_place.py::test_training_equals_eager_with_the_same_seed",
    ),
    # spellings
    Mutation(
        "rsub-not-swapped", REWRITES,
        "(call[0], (call[1][1], call[1][0]))",
        "(call[0], (call[1][0], call[1][1]))",
        f"{ROAD}[rsub]",
    ),
    Mutation("axis-is-no-dim", SPELLING, '"axis": "dim"', '"axis": "axis"', f"{ROAD}[concat]"),
    Mutation(
        "deconv-arguments-swapped", VOCABULARY,
        "output_padding=0 groups=1 dilation=1",
        "output_padding=0 dilation=1 groups=1",
        f"{ROAD}[conv_transpose2d]",
    ),
    Mutation("pool-stride-one", REWRITES, "call[1][2] or call[1][1]", "call[1][2] or 1", f"{ROAD}[max_pool]"),
    Mutation(
        "alpha-dropped", REWRITES,
        'if kwargs.pop("alpha", 1) == 1 else None',
        'if kwargs.pop("alpha", 1) else None',
        f"{ROAD}[unknown]",
    ),
    Mutation(
        "mean-over-other-axes-is-a-pool", REWRITES,
        "if sorted(dims) in ([2, 3], [-2, -1]):",
        "if len(dims) == 2:",
        f"{ROAD}[mean]",
    ),
)  # fmt: skip
