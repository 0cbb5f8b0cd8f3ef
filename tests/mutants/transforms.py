"""Breakages of calibrate, reconcile, saving and artifacts."""

from mutants.mutation import Mutation

LEADERS = "tests/transforms/test_calibrate.py::test_other_leaders_of_a_tie"
BIASES = "tests/transforms/test_calibrate.py::test_a_shared_weight_is_widened_for_both_biases"

TRANSFORMS = (
    # reconcile
    Mutation(
        "plan-the-first-override-wins", "qfunc.placement.rules:algorithm",
        "bits = change.bits or bits",
        "bits = bits or change.bits",
        "tests/transforms/test_overrides.py::test_a_later_override_of_bits_wins_though_it_is_wider",
    ),
    Mutation(
        "reconcile-widens-past-powers-of-two", "qfunc.transforms.reconcile:_widened",
        "    if power_of_two:",
        "    if False:",
        "tests/transforms/test_overrides.py::test_a_widened_scale_of_a_power_of_two_chip_is_a_power_of_two",
    ),
    Mutation(
        "sums-forget-the-layout", "qfunc.arithmetic.sums:SumFma.kernel",
        "self.rounding, unit.channels_last, self.fma",
        "self.rounding, None, self.fma",
        "tests/conformance/test_sum_order.py::test_without_convolutions",
    ),
    Mutation(
        "correct-bias-adds-the-shift", "qfunc.corrections.correct_bias:_Part.correct",
        "subtract(bias, shift)",
        "subtract(bias, -shift)",
        "tests/corrections/test_correct_bias.py::test_the_mean_of_each_channel_is_that_of_the_float_convolution",
    ),
    Mutation(
        "bias-scale-of-the-weight-alone", "qfunc.placement.ties:derivations",
        "for slot in value.of}",
        "for slot in value.of[1:]}",
        BIASES,
    ),
    Mutation(
        "derived-scales-as-calibrated", "qfunc.quantizers.fake_quantize:FakeQuantize.params",
        "if self.factors:",
        "if False:",
        "tests/transforms/test_algorithms.py::test_a_bias_follows_scales_that_were_trained",
    ),
    Mutation(
        "trained-softmax", "qfunc.placement.place:_Placement._site",
        "if isinstance(value, FixedQParams | DerivedQParams):",
        "if isinstance(value, FixedQParams):",
        "tests/transforms/test_algorithms.py::test_what_the_hardware_dictates_does_not_train",
    ),
    Mutation(
        "surrogate-in-evaluation", "qfunc.quantizers.fake_quantize:FakeQuantize._quantize",
        "self.training and self.relaxed",
        "not self.training and self.relaxed",
        "tests/transforms/test_algorithms.py::test_training_sees_the_surrogate_with_noise_of_seed_and_step",
    ),
    Mutation(
        "dynamic-scale-of-the-range-before", "qfunc.quantizers.fake_quantize:FakeQuantize._current_params",
        "of_tensor(x, self.scheme, ",
        "of_tensor(2 * x, self.scheme, ",
        "tests/transforms/test_algorithms.py::test_a_dynamic_scale_is_that_of_each_tensor",
    ),
    Mutation("widening-too-late", "qfunc.transforms.reconcile:_widened", "2.0 ** (bits - 2)", "2.0**bits", BIASES),
    Mutation(
        "widening-narrows", "qfunc.transforms.reconcile:_widened",
        "torch.maximum(weight.scale, least",
        "torch.minimum(weight.scale, least",
        "tests/transforms/test_calibrate.py::test_a_channel_without_weights_does_not_overflow_its_bias",
    ),
    Mutation(
        "tie-takes-the-smallest", "qfunc.transforms.reconcile:_tie",
        "chosen = max((result[m.path]",
        "chosen = min((result[m.path]",
        LEADERS,
    ),
    Mutation(
        "tie-led-by-an-input", "qfunc.transforms.reconcile:_tie",
        "chosen = result[members[-1].path]",
        "chosen = result[members[0].path]",
        LEADERS,
    ),
    # calibrate
    Mutation(
        "calibrate-in-training-mode", "qfunc.graph.module:in_evaluation_mode",
        "copied.training = False",
        "copied.training = module.training",
        "tests/transforms/test_purity.py::test_evaluation_semantics_whatever_the_mode",
    ),
    Mutation(
        "a-union-of-two-estimators", "qfunc.execution.observers:statistics",
        "(index, site.tie) if joined else quantizer.tensor",
        "quantizer.tensor",
        "tests/transforms/test_calibrate.py::test_a_union_tie_is_one_tensor_to_its_estimator",
    ),
    Mutation(
        "fixed-qparams-estimated", "qfunc.execution.fixed_qparams:observed_site",
        "if isinstance(value, FixedQParams) else site",
        "if value is None else site",
        "tests/targets/test_datasheets_mutants.py::test_a_softmax_has_the_scale_of_the_datasheet",
    ),
    Mutation(
        "weights-estimated-from-the-last-batch", "qfunc.execution.observers:Observer._update",
        "before = estimator.init(scheme, value) if self.states[index] is None else self.states[index]",
        "before = estimator.init(scheme, value)",
        "tests/transforms/test_calibrate.py::test_minmax_is_the_range_over_all_batches_and_ema_their_average",
    ),
    Mutation(
        "calibrate-writes-into-its-input", "qfunc.transforms.calibrate:_with_qparams",
        "calibrated = copy.deepcopy(view.model)",
        "calibrated = view.model",
        "tests/transforms/test_purity_mutants.py::test_a_quantized_model_stays_uncalibrated_when_a_calibrated_one_is_made",
    ),
    Mutation(
        "emulation-shares-its-tensors", "qfunc.transforms.emulate:_emulation",
        "_owning(copy_user_attributes(build_emulation(",
        "(copy_user_attributes(build_emulation(",
        "tests/transforms/test_purity.py::test_an_emulation_owns_its_tensors",
    ),
    # saving
    Mutation(
        "saved-without-its-mode", "qfunc.transforms.storage.save_load:save",
        '"training": model.training,',
        '"training": False,',
        "tests/transforms/test_save_load.py::test_a_new_process_reads_the_same_model",
    ),
    Mutation(
        "loaded-as-calibrated", "qfunc.transforms.storage.save_load:load",
        'stage=report["stage"], inputs',
        'stage="calibrated", inputs',
        "tests/transforms/test_save_load.py::test_a_quantized_model_stays_uncalibrated",
    ),
    Mutation(
        "load-ignores-dtypes", "qfunc.transforms.storage.save_load:_difference",
        "(tuple(current[k].shape), str(current[k].dtype)) != state[k]",
        "tuple(current[k].shape) != state[k][0]",
        "tests/transforms/test_save_load.py::test_load_refuses_another_model",
    ),
    Mutation(
        "codes-of-weights-that-they-do-not-determine", "qfunc.transforms.storage.stored_weights:CodedWeights.codes",
        "if all(_restores(q, tensors[name]) for q in each)",
        "if each",
        "tests/transforms/test_coded_weights.py::test_weights_that_codes_do_not_determine_stay_floats",
    ),
    # artifacts
    Mutation(
        "a-failed-save-loses-the-old-artifact", "qfunc.lowering.artifact:Artifact.save",
        "os.replace(old, path)",
        "pass",
        "tests/lowering/test_artifact.py::test_a_failure_leaves_what_was_there",
    ),
    Mutation(
        "save-overwrites-foreign-files", "qfunc.lowering.artifact:Artifact._foreign",
        "if others or (names and REPORT not in names):",
        "if False:",
        "tests/lowering/test_artifact.py::test_save_refuses_a_place_that_holds_something_else",
    ),
    Mutation(
        "names-that-leave-the-directory", "qfunc.lowering.artifact:Artifact.__attrs_post_init__",
        "if not is_plain_name(name):",
        "if not name:",
        "tests/lowering/test_artifact.py::test_names_stay_inside_the_directory",
    ),
    Mutation(
        "long-softmaxes-keep-the-fixed-scale", "qfunc.execution.fixed_qparams:FixedScale._mean_is_lost",
        "qparams.scale.double().max() / 2)",
        "qparams.scale.double().max() / 8)",
        "tests/transforms/test_long_softmax.py::test_long_softmaxes_get_a_smaller_scale_where_the_kernel_takes_it",
        case="513",
    ),
    Mutation(
        "short-softmaxes-are-estimated", "qfunc.execution.fixed_qparams:FixedScale._mean_is_lost",
        "qparams.scale.double().max() / 2)",
        "qparams.scale.double().max())",
        "tests/transforms/test_long_softmax.py::test_short_softmaxes_keep_the_scale_of_the_tool",
        case="511",
    ),
    Mutation(
        "lost-softmaxes-without-a-word", "qfunc.execution.fixed_qparams:FixedScale.update",
        "torch.where(codes == 0, size, 0)",
        "torch.where(codes != 0, size, 0)",
        "tests/transforms/test_long_softmax.py::test_a_target_that_fixes_the_scale_warns_with_the_cure",
    ),
)  # fmt: skip
