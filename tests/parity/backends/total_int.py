"""SNPE, PPLW8A16, PPLCUDA and STPU, which MQBench places by one rule: inputs and outputs of ops."""

from parity.table import Backend, Explained

from qfunc import targets


def twice(theirs: str, ours: str) -> Explained:
    """The average that MQBench quantizes behind the flatten and again behind a dropout that does nothing."""
    return Explained(
        "a", "activation", "adaptive_avg_pool2d", f"{theirs} {theirs}", ours, {"mobilenet_v2": 1},
        "MQBench looks through Dropout2d but not through Dropout: two quantizers in series on the classifier's input",
    )  # fmt: skip


PPQ = "PPQ, PPLQuantizer.py, PPL_CUDA_INT8: activations and weights symmetric, [-128, 127]; the artifact is one absmax a tensor"

TOTAL_INT = (
    Backend("SNPE", targets.snpe, (twice("0..255", "0..255"),)),
    Backend("PPLW8A16", targets.ppl_w8a16, (twice("0..65535", "0..65535"),)),
    Backend(
        "PPLCUDA",
        targets.ppl_cuda,
        (
            twice("0..255", "-128..127"),
            Explained(
                "b", "activation", "*", "0..255", "-128..127",
                {"resnet18": 32, "mobilenet_v2": 64, "squeezenet1_0": 39}, PPQ,
            ),
            Explained(
                "b", "weight", "*", "0..255 axis 0", "-128..127 axis 0",
                {"resnet18": 21, "mobilenet_v2": 53, "squeezenet1_0": 26}, PPQ,
            ),
        ),
    ),
    Backend("PPLCUDA", targets.ppl_cuda_affine, (twice("0..255", "0..255"),)),
    Backend("STPU", targets.stpu, (twice("-127..127", "-127..127"),)),
)  # fmt: skip
