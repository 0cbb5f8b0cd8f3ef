"""Breakages of capture and spellings."""

from mutants.mutation import Mutation

FUNCTIONAL, STORAGE = (f"qfunc/graph/{name}.py" for name in ("functional", "storage"))
SPELLING, REWRITES, VOCABULARY = (f"qfunc/graph/{name}.py" for name in ("spelling", "rewrites", "vocabulary"))

PURE = "tests/graph/test_capture_in_place.py::test_pure_form_equals_eager"
ROAD = "tests/graph/test_capture_spellings.py::test_fx_road"
TRAINING, OWN_MODULES = "qfunc/graph/training.py", "tests/graph/test_capture_training.py"

GRAPH = (
    # in-place writes
    Mutation(
        "in-place-aliases-keep-the-old-value", FUNCTIONAL,
        "self.env.update(dict.fromkeys(names, now[tensor]))",
        "pass",
        f"{PURE}[twice-fx]",
    ),
    Mutation(
        "in-place-other-names-forgotten", STORAGE,
        "names = {tensor: self._names(tensor) for tensor in through}",
        "names = {tensor: {tensor} for tensor in through}",
        PURE,
    ),
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
        "(call[0], (call[1][1], call[1][0], *call[1][2:]))",
        "call",
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
        "if call is None or alpha == 1:",
        "if True:",
        f"{ROAD}[scaled_add]",
    ),
    Mutation(
        "mean-over-other-axes-is-a-pool", REWRITES,
        "if sorted(dims) in ([2, 3], [-2, -1]):",
        "if len(dims) == 2:",
        f"{ROAD}[mean]",
    ),
    # modules that compute otherwise in training
    Mutation(
        "own-norms-are-traced-in-training", TRAINING,
        "            module.training = False",
        "            pass",
        f"{OWN_MODULES}::test_evaluation_is_the_model_s",
    ),
    Mutation(
        "own-norms-stay-calls", "qfunc/graph/capture.py",
        "    norms_as_modules(evaluated, owned)",
        "    pass",
        f"{OWN_MODULES}::test_training_is_the_model_s",
    ),
    Mutation(
        "what-a-norm-holds-beside-is-lost", TRAINING,
        "return with_rest(made, norm)",
        "return made",
        f"{OWN_MODULES}::test_evaluation_is_the_model_s",
    ),
    Mutation(
        "what-drops-keeps-the-mode-of-tracing", TRAINING,
        "twin.inner.training = module.training",
        "pass",
        f"{OWN_MODULES}::test_the_model_is_not_changed_and_modes_are_kept",
    ),
    Mutation(
        "what-follows-from-a-written-tensor-stays", "qfunc/graph/written.py",
        "if any(n in written for n in node.all_input_nodes if _name(node) not in _LIKE):",
        "if False:",
        "tests/graph/test_written.py::test_the_graph_computes_what_the_model_does",
    ),
)  # fmt: skip
