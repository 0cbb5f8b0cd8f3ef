"""Google Coral's Edge TPU: the int8 file of `litert`, divided by the Edge TPU compiler between the chip and LiteRT on the CPU.

The compiler maps the ops of the file to the chip up to the first that the chip does not run. That op and every op after it
run on the host's CPU, with LiteRT's own kernels. `qfunc.explain` lists the ops on the host with the reasons. The order of ops
is that of the model.

The arithmetic of the chip is not published. The units on the host have the arithmetic of `litert`. The compiler also leaves
to the CPU ops that cannot be known from its documents: large reshapes, and resizing where it would lose precision.
Convolutions whose two dilations differ, splits along the batch and constants in a concat are not checked here.
"""

from attrs import evolve

from qfunc.specs import (
    Attr, Everything, Host, Kernel, Op, Refuse, RequireSizes, Runtime, Span, Unknown,
)  # fmt: skip
from qfunc.targets.litert.target import RULES, litert

RUN = (
    "conv", "conv_transpose", "linear", "matmul", "add", "sub", "mul", "maximum", "minimum", "max_pool", "avg_pool",
    "adaptive_avg_pool", "global_avg_pool", "mean", "sum", "amax", "amin", "relu", "clip", "prelu", "sigmoid", "tanh",
    "softmax", "concat", "stack", "pad", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "slice", "split", "chunk",
    "resize", "rsqrt", "lstm", "dropout", "batch_norm",
)  # fmt: skip
OPERATORS = "Google Coral, TensorFlow models on the Edge TPU, supported operations"
LIST = f"{OPERATORS}: no such operation"
SOFTMAX = f"{OPERATORS}, Softmax: 'Supports only 1D input tensor with a max of 16,000 elements'"
LINEAR = f"{OPERATORS}, FullyConnected: 'Output tensor is one-dimensional'"
DEPTH = f"{OPERATORS}, Mean: 'If a z-reduction, the z-dimension must be multiple of 4'"
AXES = "Google Coral, TensorFlow models on the Edge TPU, model requirements: only the 3 innermost dimensions may be above 1"
ONE = Span(1, 1)
ANY = "It runs on the host."

edge_tpu = evolve(
    litert,
    name="edge_tpu",
    rules=tuple(evolve(rule, beside_integers=False) for rule in RULES),
    kernels=(Kernel(Everything(), Unknown("Google publishes the operations, not their rounding", nearest="litert_reference")),),
    host=Host(
        "LiteRT on the CPU",
        refuses=(
            Refuse(~Op(RUN), because=LIST, do="Use relu, sigmoid or tanh."),
            Refuse(Op("matmul") & Attr("constant", None), because=LIST, do="Multiply by a constant."),
            RequireSizes(Everything(), ("input", "output"), rank=Span(1, 4), because=AXES, do=ANY),
            RequireSizes(Op("softmax"), "input", elements=Span(1, 16_000), because=SOFTMAX, do=ANY),
            RequireSizes(Op("softmax"), "input", axes=((-2, ONE), (-3, ONE)), because=SOFTMAX, do="Flatten it."),
            RequireSizes(Op(("linear", "matmul")), "output", axes=((-2, ONE), (-3, ONE)), because=LINEAR, do="Flatten it."),
            RequireSizes(
                Op("mean") & (Attr("dim", 1) | Attr("dim", (1,))),
                "input",
                axes=((1, Span(4, multiple=4)),),
                because=DEPTH,
                do="Use a multiple of 4 channels.",
            ),
        ),
        kernels=litert.kernels,
    ),
    runtime=Runtime("edgetpu", "compiler 16.0", "Edge TPU, with LiteRT on the host"),
    source=(
        "Google Coral, TensorFlow models on the Edge TPU: model requirements and supported operations",
        "Axis, ARTPEC-7 DLPU, supported ops and optimization tips: 'cannot partition the model more than once'",
        "TensorFlow Lite 8-bit quantization specification: the file",
        *litert.source,
    ),
)
