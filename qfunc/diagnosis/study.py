"""The measurements of diagnose: the shares of causes, and what plans recover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import fx

from qfunc.analysis.integer_share import integer_share
from qfunc.analysis.report_format import name_of
from qfunc.diagnosis.causes import DETECTORS, REMAINDERS, Suspect
from qfunc.diagnosis.evidence import Evidence, largest_by_channel
from qfunc.diagnosis.latency import Latency
from qfunc.diagnosis.plan import Plan, Setting
from qfunc.diagnosis.remedies import keep_float
from qfunc.diagnosis.report import ENOUGH, Cause, Diagnosis, Trial
from qfunc.diagnosis.scoring import Metric, Score, Scorer, binder_for
from qfunc.errors import DeployError, QfuncError, SpecError
from qfunc.execution.batches import tensors_of
from qfunc.execution.progress import track
from qfunc.graph.constants import read_attr
from qfunc.graph.selectors import Context
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import Artifact
from qfunc.ops.node import slots
from qfunc.specs import Everything, Int, edit
from qfunc.transforms.bypass import remove_quantizers
from qfunc.transforms.compare import compare
from qfunc.transforms.deploy import deploy
from qfunc.transforms.explain import explain
from qfunc.transforms.sensitivity import sensitivity

SMALLEST_SHARE = 0.05
"""Causes of a smaller share of the loss are not reported."""
KEPT = (1, 2, 4)
"""The numbers of ops, the most sensitive first, that plans keep in float."""
DEEPENED = 4
"""The largest number of ops, the most sensitive first, that are added to the best plan while it does not recover enough."""
JOINED = 3
"""The largest number of plans that are joined."""


@frozen(eq=False)
class _Remedy:
    plan: Plan
    causes: tuple[str, ...]


class Study:
    """The measurements of one model."""

    def __init__(
        self,
        setting: Setting,
        batches: Iterable[Any],
        metric: Metric | None,
        latency: Latency | None,
        model: Any,
        progress: bool,
    ) -> None:
        self.setting, self.latency, self.model, self.progress = setting, latency, model, progress
        self.artifacts: dict[Plan, Artifact] = {}
        calibrated = setting.calibrated(Plan(), model)
        self.view = QuantizedModel(calibrated)
        self.metric = "SQNR, dB" if metric is None else name_of(metric, "metric")
        bind = binder_for(calibrated, metric, "diagnose")
        network = self.view.float_network
        self.scorer = Scorer(network, bind, batches, metric, "diagnose")
        self.base = self._trial(Plan(), (), calibrated, None)

    def diagnosis(self) -> Diagnosis:
        calibrated, separate = self.view.model, self.setting.calibration is not self.setting.batches
        bind, target = self.scorer.bind, self.setting.target
        inputs = [bind(batch) for batch in self.setting.batches]
        evidence = Evidence(
            view=self.view,
            context=Context(self.view.float_network, target.ops),
            evaluated=compare(inputs, progress=False)(calibrated),
            calibrated=compare([bind(b) for b in self.setting.calibration], progress=False)(calibrated) if separate else None,
            channels=largest_by_channel(self.view, bind, self.setting.batches),
        )
        causes, suspects = self._causes(evidence)
        trials, refused = self._measured(self._remedies(suspects, inputs))
        trials += self._joined(trials)
        trials += self._deepened(trials, inputs)
        plain, (base, *trials) = self._timed([self.base, *trials])
        trials.sort(key=lambda t: _usefulness(t, base), reverse=True)
        floats = tuple((row.op, row.why) for row in explain(calibrated).floats)
        best = self.scorer.best
        return Diagnosis(target.name, self.metric, best, base, causes, tuple(trials), refused, floats, self.setting, plain)

    def _causes(self, evidence: Evidence) -> tuple[tuple[Cause, ...], list[Suspect]]:
        found = self._named([s for detect in DETECTORS for s in detect(evidence)], evidence)
        explained = frozenset(site for cause, _ in found for site in cause.sites)
        rest = evolve(evidence, explained=explained)
        found += self._named([s for detect in REMAINDERS for s in detect(rest)], rest)
        # Of causes with about the same share, the more specific comes first; the sort is stable.
        found.sort(key=lambda entry: -round(min(entry[0].share, 1.0), 1))
        return tuple(cause for cause, _ in found), [suspect for _, suspect in found]

    def _named(self, suspects: list[Suspect], evidence: Evidence) -> list[tuple[Cause, Suspect]]:
        shares = [self._share(evidence, s) for s in track(suspects, "diagnose", "cause", self.progress)]
        return [
            (Cause(s.kind, s.text, share, s.sites), s)
            for s, share in zip(suspects, shares, strict=True)
            if share >= SMALLEST_SHARE
        ]

    def _share(self, evidence: Evidence, suspect: Suspect) -> float:
        # The mean of what the quantizers of a suspect add as the last and as the first of all; 0 if nothing is lost.
        if self.base.score.loss <= 0:
            return 0.0
        named = evidence.quantizers(suspect.sites)
        others = [q for q in self.view.quantizers if q not in named]
        without, alone = (self.scorer.score(remove_quantizers(self.view, removed)) for removed in (named, others))
        last, first = (score.recovered(self.base.score) for score in (without, alone))
        return (last + 1.0 - first) / 2

    def _remedies(self, suspects: Sequence[Suspect], inputs: list[Any]) -> list[_Remedy]:
        plans: dict[Plan, list[str]] = {}
        for suspect in suspects:
            for plan in suspect.plans:
                plans.setdefault(plan, []).append(suspect.kind)
        if suspects:
            ops = self._sensitive(self.view.model, inputs)
            for plan in (p for count in KEPT for p in keep_float(ops[:count])):
                plans.setdefault(plan, []).append("sensitive ops")
        return [_Remedy(plan, tuple(dict.fromkeys(kinds))) for plan, kinds in plans.items()]

    def _measured(self, remedies: list[_Remedy]) -> tuple[list[Trial], tuple[tuple[str, str], ...]]:
        trials, refused = [], []
        for remedy in track(remedies, "diagnose", "plan", self.progress):
            try:
                trials.append(self._trial(remedy.plan, remedy.causes, self.setting.calibrated(remedy.plan, self.model)))
            except QfuncError as e:
                refused.append((repr(remedy.plan), f"{e.where}: found {e.found}, wanted {e.wanted}"))
        return trials, tuple(refused)

    def _joined(self, trials: list[Trial]) -> list[Trial]:
        # The best plan, then with it each other that recovers more together with it.
        useful = (t for t in trials if t.recovered > 0 and t.runs_integers(self.base))
        ordered = sorted(useful, key=lambda t: t.recovered, reverse=True)
        found: list[Trial] = []
        best = ordered[0] if ordered else None
        for other in ordered[1:]:
            if best is None or len(found) >= JOINED:
                break
            plan = best.plan.joined(other.plan)
            if any(plan == t.plan for t in (*trials, *found)):
                continue
            try:
                trial = self._trial(plan, (*best.causes, *other.causes), self.setting.calibrated(plan, self.model))
            except (SpecError, DeployError):
                continue
            if trial.recovered > best.recovered + 0.01:
                found.append(trial)
                best = trial
        return found

    def _deepened(self, trials: list[Trial], inputs: list[Any]) -> list[Trial]:
        # The best plan, and the ops that are the most sensitive under it: a quantizer behind an op that a plan keeps in float
        # is then that of the op which reads it.
        found: list[Trial] = []
        best = max((t for t in trials if t.runs_integers(self.base)), key=lambda t: t.recovered, default=None)
        while best is not None and best.recovered < ENOUGH and len(found) < DEEPENED:
            calibrated = self.setting.calibrated(best.plan, self.model)
            plan = best.plan.joined(Plan(floats=frozenset(self._sensitive(calibrated, inputs)[:1])))
            try:
                trial = self._trial(plan, (*best.causes, "sensitive ops"), self.setting.calibrated(plan, self.model))
            except (SpecError, DeployError):
                break
            if trial.recovered <= best.recovered + 0.01 or not trial.runs_integers(self.base):
                break
            found.append(trial)
            best = trial
        return found

    def _sensitive(self, calibrated: fx.GraphModule, inputs: list[Any]) -> list[str]:
        # The paths of the ops, the most sensitive first: by the outputs, or, if these are integers, by the tensors themselves.
        if self.scorer.has_float_outputs:
            sensitive = sensitivity(inputs[:2], progress=False)(calibrated)
            return list(dict.fromkeys(row.op for row in sensitive.worst(len(sensitive.rows))))
        rows = [r for r in compare(inputs[:2], progress=False)(calibrated).rows if r.alone is not None]
        return list(dict.fromkeys(r.op for r in sorted(rows, key=lambda r: r.alone.sqnr if r.alone is not None else 0.0)))

    def _trial(self, plan: Plan, causes: tuple[str, ...], calibrated: fx.GraphModule, base: Any = ...) -> Trial:
        score: Score = self.scorer.score(calibrated)
        view = QuantizedModel(calibrated)
        share = integer_share(view, self.scorer.bind(next(iter(self.setting.batches)))).share
        recovered = 0.0 if base is None else score.recovered(self.base.score)
        if self.latency is not None:
            self.artifacts[plan] = deploy(plan.target(self.setting.target))(calibrated)
        return Trial(plan, tuple(dict.fromkeys(causes)), score, recovered, share, _weight_bits(view))

    def _timed(self, trials: list[Trial]) -> tuple[float | None, list[Trial]]:
        # The seconds of the float network, if the runtime has floats, and the trials with theirs.
        if self.latency is None:
            return None, trials
        arguments = self.scorer.bind(next(iter(self.setting.batches)))
        files = [self.artifacts[t.plan] for t in trials]
        try:
            unquantized = edit.skip(Everything())(self.setting.target)
            files.append(deploy(unquantized)(evolve(self.setting, target=unquantized).calibrated(Plan(), self.model)))
        except QfuncError:  # of a runtime without floats
            pass
        seconds = [float(s) for s in self.latency(files, tensors_of(arguments))]
        plain = seconds.pop() if len(files) > len(trials) else None
        return plain, [evolve(t, latency=s) for t, s in zip(trials, seconds, strict=True)]


def _usefulness(trial: Trial, base: Trial) -> tuple[Any, ...]:
    enough = trial.recovered >= ENOUGH and trial.runs_integers(base)
    return enough, round(trial.integer, 3) if enough else 0.0, trial.recovered, -trial.bits


def _weight_bits(view: QuantizedModel) -> int:
    formats = {q.tensor: q.module.site.scheme.format for q in view.quantizers if q.module.site.constant}
    network = view.float_network
    weights = {v for n in network.graph.nodes for slot, v in slots(n) if slot == "weight" and v.op == "get_attr"}
    widths = {name: fmt.bits if isinstance(fmt, Int) else 32 for name, fmt in formats.items()}
    return sum(read_attr(network, v).numel() * widths.get(v.name, 32) for v in weights)
