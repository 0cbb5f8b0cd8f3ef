"""Breakages of the specs and of the targets."""

from mutants.mutation import Mutation

IMPOSSIBLE = "tests/specs/test_specs_impossible.py"
SHEETS = "tests/targets/test_datasheets_mutants.py"

SPECS = (
    # validation
    Mutation(
        "bool-is-an-int", "qfunc.specs._check:integer",
        "if type(value) is not int or (low",
        "if not isinstance(value, int) or (low",
        IMPOSSIBLE,
    ),
    Mutation(
        "empty-text", "qfunc.specs._check:text",
        "if type(value) is not str or not (value or empty):",
        "if type(value) is not str:",
        IMPOSSIBLE,
    ),
    Mutation(
        "empty-range-of-codes", "qfunc.specs.number_format:Int.__attrs_post_init__",
        "full.qmin <= self.qmin < self.qmax <= full.qmax",
        "full.qmin <= self.qmin <= self.qmax <= full.qmax",
        IMPOSSIBLE,
    ),
    Mutation(
        "any-bound-of-a-power-of-two", "qfunc.specs.scheme:Scale.__attrs_post_init__",
        "if bound is not None and frexp(bound)[0] != 0.5:",
        "if False:",
        IMPOSSIBLE,
    ),
    Mutation(
        "signed-width", "qfunc.specs.number_format:Int.__attrs_post_init__",
        "(1 << self.bits - self.signed) - 1",
        "(1 << self.bits - 1) - 1",
        "tests/targets/test_datasheets_mutants.py::test_onnxruntime_activations_are_affine_bytes",
    ),
    # checks, printing
    Mutation(
        "an-exempt-law-may-hold", "qfunc.testing.validate:require_broken",
        "    raise AssertionError(f",
        "    print(f",
        "tests/functions/test_function_laws.py::test_words_of_the_call_are_checked",
    ),
    Mutation(
        "a-notebook-gets-the-whole-style", "qfunc.analysis.report_format:fragment",
        'if not line.startswith("body"))',
        "if line)",
        "tests/analysis/test_reports_in_notebooks.py::test_the_whole_fragment",
    ),
    # protocols
    Mutation(
        "misspelt-methods-pass", "qfunc.specs._check:_misfit",
        'if near and not name.startswith("_")',
        'if name in near and not name.startswith("_")',
        "tests/specs/test_protocols.py::test_a_misspelt_or_misshapen_method_is_refused",
    ),
    Mutation(
        "methods-of-any-arguments", "qfunc.specs._check:_takes",
        "except TypeError:\n        return False",
        "except TypeError:\n        return True",
        "tests/specs/test_protocols.py::test_a_misspelt_or_misshapen_method_is_refused",
    ),
    # codec, diff
    Mutation(
        "json-lists-stay-lists", "qfunc.specs.text.codec:_decode",
        "return tuple(_decode(v, known) for v in value)",
        "return [_decode(v, known) for v in value]",
        "tests/specs/test_specs_laws.py::test_a_real_target_survives_everything",
    ),
    Mutation(
        "any-schema", "qfunc.specs.text.codec:Codec.from_json",
        "if type(schema) is not int or schema != SCHEMA:",
        "if type(schema) is not int:",
        IMPOSSIBLE,
    ),
    Mutation(
        "diff-ignores-order", "qfunc.specs.text.diff:_entries",
        "(one_to_one and order != sorted(order))",
        "False",
        "tests/specs/test_specs_laws.py::test_diff_reads_like_a_datasheet",
    ),
    Mutation(
        "diff-of-the-first-only", "qfunc.specs.text.diff:_entries",
        "lines += _alone(path, \"second\", b, [row for j, row in enumerate(theirs) if j not in pairs.values()])",
        "pass",
        "tests/specs/test_specs_diff.py::test_the_whole_text_of_a_pair",
    ),
    Mutation(
        "diff-of-whole-groups", "qfunc.specs.text.diff:_rows",
        "for kind in (kinds[i] or (None,))",
        "for kind in (None,)",
        "tests/specs/test_specs_diff.py::test_other_groups_of_the_same_ops_are_said_to_be_the_same",
    ),
    Mutation(
        "diff-pairs-any-two", "qfunc.specs.text.diff:_paired",
        "sum(i == k for k, _ in left) == sum(j == k for _, k in left) == 1",
        "True",
        "tests/specs/test_specs_diff.py::test_two_entries_about_one_op_are_not_mixed_up",
    ),
    # edit
    Mutation(
        "earlier-rules-win", "qfunc.specs.edit._rewrites:AddRule.__call__",
        "(self.rule, *target.rules)",
        "(*target.rules, self.rule)",
        "tests/specs/test_specs_edit.py::test_later_edits_win",
    ),
    Mutation(
        "overrides-beat-later-edits", "qfunc.specs.edit._rewrites:SetAlgorithm.__call__",
        "o if o.role != self.role else without(o, *new)",
        "o",
        "tests/specs/test_edit_order.py::test_in_every_sequence_of_edits_the_last_value_wins",
    ),
    Mutation(
        "earlier-overrides-win", "qfunc.specs.edit._rewrites:PutBehind.__call__",
        "target.overrides + self.overrides",
        "self.overrides + target.overrides",
        "tests/specs/test_specs_edit.py::test_later_edits_win",
    ),
    Mutation(
        "narrow-codes-lose-symmetry", "qfunc.specs.edit._rewrites:narrowed",
        "low=1 - (1 << bits - 1) if symmetric else None",
        "low=None",
        "tests/specs/test_specs_edit.py::test_a_symmetric_range_stays_symmetric_and_the_same_width_stays_as_it_is",
    ),
    Mutation(
        "edits-skip-cases", "qfunc.specs.edit._rewrites:SchemeChange.__call__",
        "default=self(value.default))",
        "default=value.default)",
        "tests/specs/test_specs_edit.py::test_cases_change_inside",
    ),
    # targets
    Mutation("ort-full-range-weights", "qfunc.targets.onnxruntime.target:U8", "Int(8, low=-127)", "Int(8)", SHEETS),
    Mutation(
        "ort-weights-per-tensor", "qfunc.targets.onnxruntime.target:WEIGHT",
        "WEIGHT = Scheme(S8, Scale(PerChannel()))",
        "WEIGHT = Scheme(S8)",
        SHEETS,
    ),
    Mutation(
        "ort-softmax-scale", "qfunc.targets.onnxruntime.target:onnxruntime",
        "FixedQParams(ACTIVATION, 1 / 256, 0, smaller",
        "FixedQParams(ACTIVATION, 1 / 255, 0, smaller",
        SHEETS,
    ),
    Mutation(
        "ort-mul-zero-point-after", "qfunc.targets.onnxruntime.target:MUL",
        'Kernel(Op("mul"), FloatMultiplier(zero_point="before")',
        'Kernel(Op("mul"), FloatMultiplier()',
        "tests/conformance/test_ties_mutants.py::test_ties_are_rounded_as_the_runtime_rounds_them[mul-101]",
    ),
    Mutation(
        "tensorrt-affine-activations", "qfunc.targets.tensorrt.target:ACTIVATION",
        "ACTIVATION = Scheme(Int(8))",
        "ACTIVATION = Scheme(Int(8, signed=False))",
        SHEETS,
    ),
    Mutation(
        "tensorrt-quantizes-outputs", "qfunc.targets.tensorrt.target:tensorrt",
        "Rule(WEIGHTED, input=ACTIVATION, weight=WEIGHT)",
        "Rule(WEIGHTED, input=ACTIVATION, weight=WEIGHT, output=ACTIVATION)",
        SHEETS,
    ),
    Mutation(
        "tensorrt-no-concat-tie", "qfunc.targets.tensorrt.target:tensorrt",
        'ties=(Tie(Op("concat"), "input", "union"),),',
        "",
        SHEETS,
    ),
)  # fmt: skip
