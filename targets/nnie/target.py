"""HiSilicon NNIE, 8-bit logarithmic: a sign and 7 bits of exponent in steps of 1/16 octave.

One z for all inputs of a layer, one for its weights; x_hat = +-2^((q + z) / 16) or 0.  Convolutions with
groups stay in float; inputs of layers are quantized, outputs are not.  The vendor's tool derives z from the
largest magnitude of each input.

The codes and their values are known; accumulator, bias and requantization are not published.  Emulation
therefore decodes the codes and computes every op in float32.

Ops that neither Caffe's layers (Eltwise, Scale, Power, Reduction, Slice, Permute, ReLU6 and so on) nor the chip's
Upsample can represent are refused; ops that `edit.skip` leaves in float run on the host's CPU.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import NnieLog
from qfunc.specs import (
    Algorithm, Attr, Everything, KeepFloat, Log, Op, PerTensor, Refuse, Require, Rule, Runtime, Scheme, Target, Tie,
)  # fmt: skip
from qfunc.targets.nnie.lowering import NnieLowering

LOG = Scheme(Log(magnitude_bits=7, steps_per_octave=16))
CONVS = Op(("conv", "conv_transpose"))
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")
MODES = "MQBench user guide, hardware/nnie: '8/16 bit per-layer logarithmic quantization'"
POOLING = "MQBench user guide, hardware/nnie: 'Pooling: ceil_mode = True'"
BLOBS = "HiSVP API reference, SVP_BLOB_S: a blob has a number, channels, a height and a width"
UPSAMPLE = "MQBench user guide, hardware/nnie: 'Only support 2x nearest neighbor upsample'"
LAYERS = "HiSVP development guide, 3.1: the mapper takes Caffe's layers and some extensions, the rest runs on the CPU"
DENSE = Attr("stride", 1) | Attr("stride", (1, 1))  # rounding the output size down or up is the same
TWICE = Attr("scale_factor", 2.0) | Attr("scale_factor", (2.0, 2.0))
RUN = (
    "conv", "conv_transpose", "linear", "batch_norm", *POOLS, "mean", "sum", "add", "sub", "mul", "maximum", "abs", "neg",
    "pow", "exp", "relu", "leaky_relu", "prelu", "clip", "elu", "softplus", "sigmoid", "tanh", "softmax", "concat", "slice",
    "split", "chunk", "unbind", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "resize", "dropout",
)  # fmt: skip

nnie = Target(
    name="nnie",
    rules=(
        Rule(CONVS & ~Attr("groups", 1), input=KeepFloat(), weight=KeepFloat()),
        Rule(CONVS | Op("linear"), input=LOG, weight=LOG),
        Rule(Op(("add", "mul", *POOLS, "resize", "batch_norm", "prelu")), input=LOG),
    ),
    ties=(Tie(Op(("add", "mul")), "input", "union"),),
    legality=(
        Require(Everything(), ("input", "weight"), formats=LOG.format, shared=PerTensor(), because=MODES),
        Refuse(
            Op("resize") & ~(Attr("mode", "nearest") & TWICE),
            because=UPSAMPLE,
            do="Resize by mode='nearest', scale_factor=2, or leave it to the CPU by edit.skip.",
        ),
        Refuse(
            Op(("max_pool", "avg_pool")) & Attr("ceil_mode", False) & ~DENSE,
            because=POOLING,
            do="Pool with ceil_mode=True, the same where windows fit exactly, or leave it to the CPU by edit.skip.",
        ),
        Refuse(Attr("spatial", 3), because=BLOBS, do="Slide along 2 dimensions, or leave it to the CPU by edit.skip."),
        Refuse(~Op(RUN), because=LAYERS, do="Replace it by ops that Caffe has, or leave it to the CPU by edit.skip."),
    ),
    runtime=Runtime("nnie", cpu="Hi35xx"),
    lowering=NnieLowering(),
    source=(
        "MQBench, fake_quantize/nnie.py and user guide hardware/nnie: the format, its codes and bounds",
        "MQBench, backend NNIE: placement; gfpq table: no entries for convolutions with groups",
    ),
    weight=Algorithm(MinMax(), NnieLog()),
    activation=Algorithm(Ema(), NnieLog()),
)
