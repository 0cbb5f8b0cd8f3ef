"""Named one-line breakages of the library, by area."""

from mutants.channels import CHANNELS
from mutants.cmsis_nn import CMSIS_NN
from mutants.command_line import COMMAND_LINE
from mutants.compressed_tensors import COMPRESSED_TENSORS
from mutants.corrections import CORRECTIONS
from mutants.cpus import CPUS
from mutants.decomposed import DECOMPOSED
from mutants.deployment import DEPLOYMENT
from mutants.diagnosis import DIAGNOSIS
from mutants.edge_tpu import EDGE_TPU
from mutants.emulation import EMULATION
from mutants.estimators import ESTIMATORS
from mutants.executorch import EXECUTORCH
from mutants.fake_quantize import FAKE_QUANTIZE
from mutants.files import FILES
from mutants.fixed_curves import FIXED_CURVES
from mutants.folding import FOLDING
from mutants.formats import FORMATS
from mutants.functions import FUNCTIONS
from mutants.gguf import GGUF
from mutants.graph import GRAPH
from mutants.histograms import HISTOGRAMS
from mutants.k210 import K210
from mutants.kept import KEPT_OF_THE_USER
from mutants.legality import LEGALITY
from mutants.lowerings_runtimes import LOWERINGS_RUNTIMES
from mutants.lowerings_toolchains import LOWERINGS_TOOLCHAINS
from mutants.merging import MERGING
from mutants.mlas import MLAS
from mutants.mutation import Mutation
from mutants.nbits import NBITS
from mutants.ncnn import NCNN
from mutants.networks import NETWORKS
from mutants.numerics import NUMERICS
from mutants.openvino_blocks import OPENVINO_BLOCKS
from mutants.outer import OUTER_MODULES
from mutants.own_ops import OWN_OPS
from mutants.placement import PLACEMENT
from mutants.proof import PROOF
from mutants.qnn_htp import QNN_HTP
from mutants.reconstruction import RECONSTRUCTION
from mutants.reports import REPORTS
from mutants.resumed import RESUMED
from mutants.rounding_functions import ROUNDING_FUNCTIONS
from mutants.specs import SPECS
from mutants.streaming import STREAMING
from mutants.sweeps import SWEEPS
from mutants.target_laws import TARGET_LAWS
from mutants.targets import TARGETS
from mutants.ties import TIES
from mutants.tosa import TOSA
from mutants.traces import TRACES
from mutants.training import TRAINING
from mutants.transformers import TRANSFORMERS
from mutants.transforms import TRANSFORMS
from mutants.vitis import VITIS
from mutants.words import WORDS
from mutants.xnnpack import XNNPACK

MUTATIONS: tuple[Mutation, ...] = (
    *NUMERICS,
    *FILES,
    *FIXED_CURVES,
    *FAKE_QUANTIZE,
    *CHANNELS,
    *CMSIS_NN,
    *COMPRESSED_TENSORS,
    *FORMATS,
    *FUNCTIONS,
    *ESTIMATORS,
    *HISTOGRAMS,
    *TOSA,
    *TRACES,
    *GRAPH,
    *FOLDING,
    *KEPT_OF_THE_USER,
    *PLACEMENT,
    *PROOF,
    *LEGALITY,
    *TRANSFORMS,
    *TRAINING,
    *TRANSFORMERS,
    *MERGING,
    *DECOMPOSED,
    *OPENVINO_BLOCKS,
    *OUTER_MODULES,
    *COMMAND_LINE,
    *CORRECTIONS,
    *DIAGNOSIS,
    *SWEEPS,
    *STREAMING,
    *RESUMED,
    *RECONSTRUCTION,
    *EMULATION,
    *MLAS,
    *NBITS,
    *NCNN,
    *DEPLOYMENT,
    *OWN_OPS,
    *NETWORKS,
    *LOWERINGS_RUNTIMES,
    *LOWERINGS_TOOLCHAINS,
    *EXECUTORCH,
    *XNNPACK,
    *GGUF,
    *QNN_HTP,
    *SPECS,
    *TARGETS,
    *TARGET_LAWS,
    *ROUNDING_FUNCTIONS,
    *VITIS,
    *K210,
    *EDGE_TPU,
    *REPORTS,
    *TIES,
    *WORDS,
    *CPUS,
)

__all__ = ["MUTATIONS", "Mutation"]
