"""Shrink a failing program while the same kind of failure persists.

A smaller program is cut at either end, has a statement replaced by a part of it, or lacks an option.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve

from qfunc.testing.fuzz.outcome import Outcome
from qfunc.testing.grammar.draft import BATCH, Draft, MisfitError, replay
from qfunc.testing.grammar.naming import substitute
from qfunc.testing.grammar.program import Input, Program
from qfunc.testing.grammar.pruning import names_assigned, prune

Run = Callable[[Program], Outcome]


def shrink(program: Program, outcome: Outcome, run: Run, seconds: float = 90.0) -> Program:
    """Return the smallest program found whose outcome is the same failure.

    Each accepted program is the start of the next search, until none is smaller or the time is over.

    Args:
        program: The failing program.
        outcome: Its outcome.
        run: program -> outcome.
        seconds: When the search ends.
    """
    end = time.monotonic() + seconds
    tried = {program}
    while True:
        for candidate in smaller(program):
            if time.monotonic() > end:
                return program
            if candidate in tried:
                continue
            tried.add(candidate)
            if run(candidate).failure == outcome.failure:
                program = candidate
                break
        else:
            return program


def smaller(program: Program) -> Iterator[Program]:
    """Yield programs that run in PyTorch and are smaller, those that drop most first."""
    seen = {program}
    draft = replay(program)
    for candidate in _candidates(program, draft):
        try:
            shorter = prune(candidate)
            replay(shorter)
            replay(shorter, BATCH - 2)
        except MisfitError:
            continue
        if shorter not in seen:
            seen.add(shorter)
            yield shorter


def _candidates(program: Program, draft: Draft) -> Iterator[Program]:
    count = len(program.steps)
    for place in _spread(count):
        yield from _to(program, draft, place)
        yield from _from(program, draft, count - 1 - place)
    if len(program.outputs) > 1:
        for place in range(len(program.outputs)):
            yield evolve(program, outputs=program.outputs[:place] + program.outputs[place + 1 :])
    if program.edits:
        yield evolve(program, edits=())
    for place in range(len(program.changes)):
        yield evolve(program, changes=program.changes[:place] + program.changes[place + 1 :])
    for place in range(count - 1, -1, -1):
        yield from _parts(program, place)
    for place, layer in enumerate(program.layers):
        for shorter in _shorter(layer):
            yield evolve(program, layers=(*program.layers[:place], shorter, *program.layers[place + 1 :]))
    if program.export:
        yield evolve(program, export=False)
    if program.factor != "2":
        yield evolve(program, factor="2")
    for place, one in enumerate(program.inputs):
        plain = re.match(r"torch\.randn\([^)]*\)", one.code)
        if plain and plain[0] != one.code:
            changed = evolve(one, code=plain[0])
            yield evolve(program, inputs=(*program.inputs[:place], changed, *program.inputs[place + 1 :]))


def _spread(count: int) -> Iterable[int]:
    # Every place below count; a quarter, a half and three quarters first.
    return dict.fromkeys((count // 4, count // 2, 3 * count // 4, *range(count))) if count else ()


def _to(program: Program, draft: Draft, place: int) -> Iterator[Program]:
    # The program that returns the value of one statement.
    for name in names_assigned(program.steps[place]):
        if draft.is_tensor(name) and (name,) != program.outputs:
            yield evolve(program, steps=program.steps[: place + 1], outputs=(name,))


def _from(program: Program, draft: Draft, place: int) -> Iterator[Program]:
    # The program with the value of one statement as an input; what only that value needs goes.
    names = names_assigned(program.steps[place])
    for name in names:
        if draft.is_tensor(name) and draft.shape(name)[:1] == (BATCH,):
            sizes = "".join(f", {s}" for s in draft.shape(name)[1:])
            start = Input(name, f"torch.randn(n{sizes})")
            rest = program.steps[place + 1 :] if len(names) > 1 else program.steps[:place] + program.steps[place + 1 :]
            yield evolve(program, inputs=(*program.inputs, start), steps=rest)


def _parts(program: Program, place: int) -> Iterator[Program]:
    # The program with the value of one statement replaced by an expression inside it.
    (parsed,) = ast.parse(program.steps[place]).body
    assert isinstance(parsed, ast.Assign)
    before, after = program.steps[:place], program.steps[place + 1 :]
    names = names_assigned(program.steps[place])
    slices = {id(n) for s in ast.walk(parsed.value) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
    inner = [n for n in ast.walk(parsed.value) if isinstance(n, ast.expr) and n is not parsed.value and id(n) not in slices]
    for part in inner:
        if len(names) == 1 and isinstance(part, ast.Name):
            known = {names[0]: part.id}
            steps, outputs = (tuple(substitute(s, known) for s in texts) for texts in (after, program.outputs))
            yield evolve(program, steps=before + steps, outputs=outputs)
        elif not isinstance(part, ast.Constant):
            yield evolve(program, steps=(*before, f"{', '.join(names)} = {ast.unparse(part)}", *after))


def _shorter(layer: str) -> list[str]:
    # Sequential layers without one of their members.
    parsed = ast.parse(layer).body[0]
    call = parsed.value if isinstance(parsed, ast.Assign) else None
    if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "nn.Sequential"):
        return []
    members, name = [ast.unparse(a) for a in call.args], layer.split(" = ")[0]
    rest = [members[:i] + members[i + 1 :] for i in range(len(members)) if len(members) > 1]
    return [f"{name} = nn.Sequential({', '.join(r)})" for r in rest]
