"""A differential fuzzer: networks as model authors write them, on the real runtime of a target.

`python -m qfunc.testing.fuzz --target litert --seed 0 --count 100` draws, runs and shrinks; see docs/fuzzing.md.
"""
