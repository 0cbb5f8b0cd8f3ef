"""Breakages of activations with one scale per channel, caught by torch's per-channel quantizer and by ONNX Runtime."""

from mutants.mutation import Mutation

CHANNELS = (
    Mutation(
        "shape-of-a-state-dict-not-taken", "qfunc.quantizers.fake_quantize:FakeQuantize.load_shape",
        "                self._set_shape(shape)",
        "                pass",
        "tests/emulation/test_channel_scales.py::test_a_state_dict_brings_the_shapes",
    ),
    Mutation(
        "other-channels-broadcast-in-use", "qfunc.quantizers.fake_quantize:FakeQuantize._current_params",
        "            self._require_channels(x)",
        "            pass",
        "tests/emulation/test_channel_scales.py::test_another_number_of_channels_is_refused_in_use",
    ),
    Mutation(
        "shapes-of-batches-not-compared", "qfunc.execution.observers:Observer._require_same_channels",
        "if scales is None or scales != self.shapes[index]:",
        "if scales is None:",
        "tests/emulation/test_channel_scales.py::test_another_number_of_channels_is_refused_in_calibration",
    ),
    Mutation(
        "codes-with-a-scale-a-channel-pass-a-flatten", "qfunc.placement.partition:Partition._shared_encoding",
        "if carried is not None and not carried.quantizer.module.site.by_channel:",
        "if carried is not None:",
        "tests/emulation/test_channel_scales.py::test_the_artifact_computes_what_the_simulation_does",
    ),
    Mutation(
        "pairs-with-a-scale-a-channel-not-kept-apart", "qfunc.lowering.onnx.qdq_nodes:write_quantizer",
        "    if not hidden:",
        "    if True:",
        "tests/emulation/test_channel_scales.py::test_the_artifact_computes_what_the_simulation_does",
    ),
    Mutation(
        "unlike-channels-tied", "qfunc.placement.place:_Placement._ties",
        "if m is not None and not m.site.by_channel]",
        "if m is not None]",
        "tests/emulation/test_channel_scales.py::test_tensors_of_unlike_channels_are_not_tied",
    ),
    Mutation(
        "bias-derived-from-a-scale-a-channel", "qfunc.placement.place:_Placement._quantized_product",
        "given.site.dynamic or given.site.by_channel:",
        "given.site.dynamic:",
        "tests/emulation/test_channel_scales.py::test_a_bias_is_derived_where_its_input_has_one_scale",
    ),
)  # fmt: skip
