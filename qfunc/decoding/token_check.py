"""verify_tokens: does the runtime answer a prompt with the emulated tokens? The report names the unit that differs first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import asdict, field, frozen
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.analysis.verification_report import Report
from qfunc.decoding.generate import Step, generate, require_prompt, step_of
from qfunc.graph.input_limits.ids import id_tables, require_ids
from qfunc.specs import Target
from qfunc.specs.protocols import LoadingRunner, Runner
from qfunc.transforms.deploy import deploy
from qfunc.transforms.emulate import emulate
from qfunc.transforms.verify import compared


def verify_tokens(target: Target, count: int, runtime: Any = None) -> Callable[[fx.GraphModule, Sequence[Tensor]], TokenReport]:
    """Return a function (calibrated, inputs) -> `TokenReport` that compares `count` tokens after a prompt.

    The emulation and the runtime each answer the prompt, with their own state, by the largest logits.  Each step of the
    emulation is then verified as `verify` does, on the inputs that it had there.  If tokens differ, the report has the first
    one, and the first unit that differs on the same inputs up to there.

    Args:
        target: The hardware that the model was quantized for.
        count: The number of tokens, at least 1.
        runtime: As for `verify`.
    Raises:
        VerifyError: inputs that are no prompt, more tokens than the state holds, or what `verify` refuses.
        CaptureError: ids outside of the model's table of embeddings.
        EmulationError: a target without public arithmetic.

    >>> from qfunc import targets
    >>> verify_tokens(targets.onnxruntime, 20).arguments["count"]
    20
    """

    def transform(calibrated: fx.GraphModule, inputs: Sequence[Tensor]) -> TokenReport:
        require_prompt("verify_tokens", inputs, count)
        steps, exact = list[tuple[Tensor, ...]](), emulate(target)(calibrated)
        require_ids(id_tables(calibrated), inputs, "verify_tokens")
        emulated = _answer(_recorded(exact, steps), inputs, count)
        report = compared(target, runtime)(calibrated, steps)
        ran = _answer(_loaded(target, runtime, deploy(target)(calibrated)), inputs, count)
        return TokenReport(_rows(emulated), _rows(ran), _first(emulated, ran, report), report)

    return Transform(verify_tokens, {"target": target, "count": count, "runtime": runtime}, transform)


def _answer(step: Step, inputs: Sequence[Tensor], count: int) -> Tensor:
    return generate(count, progress=False)(step, inputs)


def _recorded(model: nn.Module, steps: list[tuple[Tensor, ...]]) -> Step:
    # The step of a model, which appends its inputs.
    run = step_of(model)

    def step(given: Sequence[Tensor]) -> Sequence[Any]:
        steps.append(tuple(v.clone() for v in given))  # without the marks of inference mode
        return run(given)

    return step


def _loaded(target: Target, runtime: Any, artifact: Any) -> Step:
    runner = target.runtime.runner if runtime is None else runtime
    if isinstance(runner, LoadingRunner):
        return runner.loaded(artifact)
    run: Any = runner.run if isinstance(runner, Runner) else runner
    return lambda given: run(artifact, list(given))


def _rows(tokens: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, tokens.tolist()))


def _first(emulated: Tensor, ran: Tensor, report: Report) -> TokenDifference | None:
    # The first difference in time, and of that the first row.
    places = (emulated != ran).T.nonzero()
    if not len(places):
        return None
    token, row = (int(i) for i in places[0])
    found = [(r.first.batch, r.name) for r in report.rows if r.kind in ("codes", "real", "output") and r.first is not None]
    step, unit = min((f for f in found if f[0] <= token), key=lambda f: f[0], default=(-1, ""))
    return TokenDifference(row, token, int(emulated[row, token]), int(ran[row, token]), unit, step)


@frozen
class TokenDifference:
    """The first token that differs: its row in the prompt, its number in the answer, from 0, and both values.

    `unit` is the first tensor, in the order of execution, whose result differs where both get the inputs of the emulation,
    and `step` the first step where it does: 0 reads the prompt, k reads token k - 1.  Both are empty and -1 if no tensor
    differs on these inputs.

    >>> print(TokenDifference(0, 3, 17, 4, "layers.0.o_proj", 2))
    token 3 of row 0: 17 emulated, 4 by the runtime; layers.0.o_proj differs first, in step 2
    """

    row: int
    token: int
    emulated: int
    runtime: int
    unit: str
    step: int

    def __str__(self) -> str:
        cause = f"{self.unit} differs first, in step {self.step}" if self.unit else "no tensor differs on the same inputs"
        return f"token {self.token} of row {self.row}: {self.emulated} emulated, {self.runtime} by the runtime; {cause}"


@frozen
class TokenReport:
    """The report of `verify_tokens`.

    `emulated` and `runtime` are the tokens of each row; `report` compares the tensors of every step of the emulation, as
    `verify` does.  `first` is the first token that differs, or None.
    """

    emulated: tuple[tuple[int, ...], ...] = field(repr=False)
    runtime: tuple[tuple[int, ...], ...] = field(repr=False)
    first: TokenDifference | None
    report: Report = field(repr=False)

    @property
    def tokens(self) -> int:
        """The number of tokens compared."""
        return sum(map(len, self.emulated))

    @property
    def mismatches(self) -> int:
        """The number of tokens that differ; those after the first one of a row answer another text."""
        return sum(
            a != b for one, other in zip(self.emulated, self.runtime, strict=True) for a, b in zip(one, other, strict=True)
        )

    @property
    def verdict(self) -> str:
        """One line: the tokens that differ, the first of them, and the verdict on the tensors."""
        first = "" if self.first is None else f"; {self.first}"
        return f"{self.mismatches:,} of {self.tokens:,} tokens differ{first}; {self.report.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        own = {key: value for key, value in asdict(self).items() if key != "report"}
        return {"verdict": self.verdict, **own, "report": self.report.to_dict()}

    def __str__(self) -> str:
        """Return the verdict on the tokens, and the report of the tensors."""
        first = "" if self.first is None else f"; {self.first}"
        return f"{self.mismatches:,} of {self.tokens:,} tokens differ{first}\n{self.report}"
