"""Breakages of the stream from a checkpoint to a packed file."""

from mutants.mutation import Mutation

STREAMING = (
    Mutation(
        "stream-rounds-on-the-float-network",
        "qfunc.streaming.stream:_Stream._piece",
        'following["rounded"] = results(model, each["rounded"])',
        'following["rounded"] = following["float"]',
        "tests/streaming/test_streamed_equals_whole.py::test_gptq_sees_what_the_rounded_layers_compute",
    ),
    Mutation(
        "stream-matches-the-quantized-network",
        "qfunc.streaming.piece:calibrate_piece",
        "float_batches=inputs",
        "float_batches=rounded_inputs",
        "tests/streaming/test_streamed_equals_whole.py::test_gptq_sees_what_the_rounded_layers_compute",
    ),
    Mutation(
        "stream-forgets-the-states-on-disk",
        "qfunc.streaming.stream:_Stream._start",
        "for layer in (finished, finished - 1):",
        "for layer in ():",
        "tests/streaming/test_resumed.py::test_the_resumed_file_has_the_same_bytes",
    ),
)
