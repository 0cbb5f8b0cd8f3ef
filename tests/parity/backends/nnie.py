"""NNIE."""

from attrs import evolve
from parity.golden import LOG
from parity.table import FLOAT, Backend, Explained

from qfunc import targets

GROUPS = "MQBench, gfpq table: group convolutions have no entry; user guide hardware/nnie: avoid depthwise convolutions"

NNIE = (
    Backend(
        "NNIE",
        evolve(targets.nnie, legality=()),  # MQBench refuses no op: the networks pool with ceil_mode=False
        (
            Explained(
                "b", "activation", "features_0_2 features_*_conv_0_2", LOG, FLOAT, {"mobilenet_v2": 17}, GROUPS
            ),
            Explained(
                "b", "weight", "features.1.conv.0.0 features.*.conv.1.0", LOG, FLOAT, {"mobilenet_v2": 17}, GROUPS
            ),
        ),
    ),
)  # fmt: skip
