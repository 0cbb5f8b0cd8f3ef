"""The report of `diagnose`: what was lost, why, and what recovers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import field, frozen
from torch import fx, nn

from qfunc.analysis.report_format import HtmlReport, Section, page, table
from qfunc.diagnosis.plan import Plan, Setting
from qfunc.diagnosis.scoring import Score
from qfunc.errors import CalibrationError

ENOUGH = 0.9
"""The share of the loss that a plan has to recover by default."""
ALIKE = 1.05
"""Latencies whose ratio is smaller are equal: measurements differ by as much."""


@frozen
class Cause:
    """One cause of the loss.

    Attributes:
        kind: Its name.
        text: What was measured.
        share: The share of the loss that the model does not have without the quantizers of `sites`.
        sites: The names of these sites.
    """

    kind: str
    text: str
    share: float
    sites: tuple[str, ...] = field(repr=False)


@frozen
class Trial:
    """One plan, as measured.

    Attributes:
        plan: The plan.
        causes: The causes that it addresses.
        score: What the model scores.
        recovered: The share of the loss that it recovers.
        integer: The share of multiply-accumulates on integers.
        bits: The bits of all weights.
        latency: The seconds of the first batch on the runtime; None without `latency=`.
    """

    plan: Plan
    causes: tuple[str, ...]
    score: Score
    recovered: float
    integer: float
    bits: int
    latency: float | None = None

    def runs_integers(self, base: Trial) -> bool:
        """Return True if some multiply-accumulates are on integers, or none are in the model as it was quantized."""
        return self.integer > 0 or base.integer == 0


@frozen(repr=False)
class Diagnosis(HtmlReport):
    """The report of `diagnose`.  `repr` is one line, `print` shows tables, `html` returns a page.

    Attributes:
        target: The name of the target.
        metric: The name of the metric; "SQNR, dB" without one.
        best: The metric of the float network, or None.
        base: The model as it was quantized.
        causes: The causes, the greatest share of the loss first.
        trials: The plans that the target can do; first those that recover enough, with the most on integers first.
        refused: (plan, reason) of the plans that it cannot do.
        floats: (op, reason) of the ops that compute in float.
        plain: The seconds of the first batch for the network in float on the runtime; None without `latency=`, or if the
            runtime has no floats.
    """

    target: str
    metric: str
    best: float | None
    base: Trial
    causes: tuple[Cause, ...]
    trials: tuple[Trial, ...]
    refused: tuple[tuple[str, str], ...]
    floats: tuple[tuple[str, str], ...]
    setting: Setting = field(repr=False)
    plain: float | None = None

    @property
    def remark(self) -> str:
        """What a user would want to know before applying a plan: that none is faster than the network in float; or ""."""
        timed = [t for t in (self.base, *self.trials) if t.latency is not None and t.runs_integers(self.base)]
        if self.plain is None or any((t.latency or 0.0) < self.plain for t in timed):
            return ""
        return (
            f"no plan is faster than the network in float, which takes {1e3 * self.plain:.4g} ms: "
            "qfunc.measure_placement(target, inputs)(model) finds what is slower on integers"
        )

    def choose(self, *, recovered: float | None = None, integer: float | None = None, latency: float | None = None) -> Trial:
        """Return the best trial within a budget of accuracy, of latency or of both.

        With a budget of latency alone it is the trial that recovers most. Else it is the one with the most multiply-accumulates
        on integers, if latencies were measured among the fastest, which take at most 1.05 times the least.

        Args:
            recovered: The least share of the loss to recover, in [0, 1]; None for 0.9, or 0 with a budget of latency.
            integer: The least share of multiply-accumulates on integers, in [0, 1]; None for any share above 0, if the model as
                it was quantized has one. 0 also allows plans that leave the whole network in float.
            latency: The most seconds for the first batch.
        Raises:
            CalibrationError: no trial is within the budget, and the message has the nearest; or no latency was measured.
        """
        least = (ENOUGH if latency is None else 0.0) if recovered is None else recovered
        if latency is not None and self.base.latency is None:
            do = "Pass latency=qfunc.diagnosis.RunTime(target.runtime.runner) to diagnose."
            found, wanted = "a diagnosis without latencies", "one that measured them"
            raise CalibrationError(where="Diagnosis, latency", found=found, wanted=wanted, do=do)
        trials = (self.base, *self.trials)
        fast = [t for t in trials if latency is None or (t.latency is not None and t.latency <= latency)]
        if not fast:
            raise self._too_slow(latency or 0.0)
        quantized = [t for t in fast if (t.integer >= integer if integer is not None else t.runs_integers(self.base))]
        within = [t for t in quantized if t.recovered >= least]
        if not within:
            raise self._too_lossy(fast, quantized, least, integer)
        if latency is not None and recovered is None:
            return max(within, key=lambda t: (t.recovered, -(t.latency or 0.0)))
        limit = ALIKE * min(t.latency or 0.0 for t in within)
        fastest = [t for t in within if (t.latency or 0.0) <= limit]
        return max(fastest, key=lambda t: (round(t.integer, 3), -t.bits, t.recovered))

    def _too_slow(self, latency: float) -> CalibrationError:
        fastest = min((self.base, *self.trials), key=lambda t: t.latency or 0.0)
        found = f"{_ms(fastest)} ms at least, by {fastest.plan!r}"
        do = "Allow more, or take smaller layers or batches: quantization does not make this network faster on this runtime."
        return CalibrationError(where="Diagnosis", found=found, wanted=f"a plan of at most {1e3 * latency:.4g} ms", do=do)

    def _too_lossy(
        self, trials: Sequence[Trial], quantized: Sequence[Trial], least: float, integer: float | None
    ) -> CalibrationError:
        nearest = max(quantized, key=lambda t: t.recovered, default=self.base)
        found = f"{nearest.recovered:.1%} with {nearest.integer:.1%} on integers, by {nearest.plan!r}"
        share = "any" if integer is None else f"at least {integer:.1%}"
        wanted = f"a plan that recovers {least:.1%} with {share} on integers"
        if len(trials) <= len(self.trials):
            wanted += " in the given time"
        lower = "Lower one of the two" if integer else "Lower recovered"
        do = f"{lower}, reconstruct (docs/reconstruction.md) or train the model (docs/training.md)."
        return CalibrationError(where="Diagnosis", found=found, wanted=wanted, do=do)

    def apply(
        self, *, recovered: float | None = None, integer: float | None = None, latency: float | None = None
    ) -> Callable[[nn.Module], fx.GraphModule]:
        """Return the transform of the float model to the calibrated model of a budget's plan.

        Args and errors are the same as in `choose`.
        """
        chosen = self.choose(recovered=recovered, integer=integer, latency=latency)

        def transform(model: nn.Module) -> fx.GraphModule:
            calibrated: fx.GraphModule = self.setting.calibrated(chosen.plan, model)
            return calibrated

        return transform

    def sections(self) -> tuple[Section, ...]:
        """Return the tables: causes, plans, plans that the target refuses, ops in float."""
        causes = tuple((f"{c.share:.1%}", c.kind, c.text) for c in self.causes)
        timed = () if self.base.latency is None else ("latency, ms",) if self.plain is None else ("latency, ms", "of float")
        head = (self.metric, "recovered", "on integers", "weights, KiB", *timed, "plan")
        rows = tuple(self._cells(t) for t in (self.base, *self.trials))
        return (
            Section("Causes", ("of the loss", "cause", "what was measured"), causes),
            Section("Plans", head, rows),
            Section("Not on this target", ("plan", "why"), self.refused),
            Section("In float", ("op", "why"), self.floats),
        )

    def _cells(self, trial: Trial) -> tuple[str, ...]:
        share = f"{trial.recovered:.1%}" if trial is not self.base else ""
        timed = [] if trial.latency is None else [_ms(trial)]
        timed += [] if self.plain is None or trial.latency is None else [f"{trial.latency / self.plain:.2f}"]
        return (f"{trial.score.value:.4g}", share, f"{trial.integer:.1%}", f"{trial.bits / 8192:.4g}", *timed, repr(trial.plan))

    @property
    def _title(self) -> str:
        of = "" if self.best is None else f", of the float network {self.best:.4g}"
        first = f"; first cause: {self.causes[0].kind}" if self.causes else "; no cause found"
        return f"{self.target}: {self.metric} {self.base.score.value:.4g}{of}{first}"

    def __repr__(self) -> str:
        return f"Diagnosis({self.target!r}, {len(self.causes)} causes, {len(self.trials)} plans)"

    def __str__(self) -> str:
        """Return the tables as text."""
        tables = (f"{s.title}\n{table(s.head, s.rows, 200)}" for s in self.sections() if s.rows)
        return "\n\n".join((self._title, *tables, *([self.remark] if self.remark else [])))

    def html(self) -> str:
        """Return a self-contained page."""
        intro = (
            "The share of a cause is what the model recovers without the quantizers of its sites. "
            f"Each plan was measured on the evaluated batches; its code is what a program writes. {self.remark}"
        )
        return page(self._title, intro, self.sections())


def _ms(trial: Trial) -> str:
    return f"{1e3 * (trial.latency or 0.0):.4g}"
