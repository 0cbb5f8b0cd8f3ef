"""Why a quantized model loses accuracy, and which plans recover it."""

from qfunc.diagnosis.board_time import BoardTime
from qfunc.diagnosis.diagnose import diagnose
from qfunc.diagnosis.latency import Latency, RunTime
from qfunc.diagnosis.plan import Correction, Plan
from qfunc.diagnosis.report import Cause, Diagnosis, Trial
from qfunc.diagnosis.scoring import Score

__all__ = ["BoardTime", "Cause", "Correction", "Diagnosis", "Latency", "Plan", "RunTime", "Score", "Trial", "diagnose"]
