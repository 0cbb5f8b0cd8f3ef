"""Breakages of activations with a scale a channel, caught by torch's per-channel quantizer and by ONNX Runtime."""

from mutants.mutation import Mutation

TESTS = "tests/transforms/test_channels.py"
SITE, OBSERVING, UNITS = "qfunc/graph/fake_quantize.py", "qfunc/transforms/observing.py", "qfunc/graph/units.py"
PLAN, WRITER = "qfunc/graph/plan.py", "qfunc/lowering/onnx_quantizers.py"

CHANNELS = (
    Mutation(
        "shape-of-a-state-dict-not-taken", SITE,
        "                self._take_shape(shape)",
        "                pass",
        f"{TESTS}::test_a_state_dict_brings_the_shapes",
    ),
    Mutation(
        "other-channels-broadcast-in-use", SITE,
        "            self._require_channels(x)",
        "            pass",
        f"{TESTS}::test_another_number_of_channels_is_refused_in_use",
    ),
    Mutation(
        "shapes-of-batches-not-compared", OBSERVING,
        "if scales is None or scales != self.shapes[index]:",
        "if scales is None:",
        f"{TESTS}::test_another_number_of_channels_is_refused_in_calibration",
    ),
    Mutation(
        "codes-with-a-scale-a-channel-pass-a-flatten", UNITS,
        "if carried is not None and not carried.seat.module.site.by_channel:",
        "if carried is not None:",
        f"{TESTS}::test_the_artifact_computes_what_the_simulation_does",
    ),
    Mutation(
        "pairs-with-a-scale-a-channel-not-kept-apart", WRITER,
        "    if not hidden:",
        "    if True:",
        f"{TESTS}::test_the_artifact_computes_what_the_simulation_does",
    ),
    Mutation(
        "unlike-channels-tied", PLAN,
        "if m is not None and not m.site.by_channel]",
        "if m is not None]",
        f"{TESTS}::test_tensors_of_unlike_channels_are_not_tied",
    ),
    Mutation(
        "bias-derived-from-a-scale-a-channel", PLAN,
        "given.site.dynamic or given.site.by_channel:",
        "given.site.dynamic:",
        f"{TESTS}::test_a_bias_is_derived_where_its_input_has_one_scale",
    ),
)  # fmt: skip
