"""Targets that put on integers every op for which they have a rule: to compare kernels with the runtime's."""

from __future__ import annotations

from attrs import evolve

from qfunc.specs import Target


def on_integers(target: Target) -> Target:
    """Return the target without islands, and without ops that its processor is slower on integers at."""
    builds = tuple(evolve(build, slower=()) for build in target.runtime.builds)
    rules = tuple(evolve(rule, beside_integers=False) for rule in target.rules)
    return evolve(target, rules=rules, runtime=evolve(target.runtime, builds=builds))
