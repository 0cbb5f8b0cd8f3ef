"""What `verify` does: the artifact of a model in the real runtime against the emulation, tensor by tensor.

`check.py` runs both, batch by batch, `tallies.py` counts what differs and knows which tensors must not, `outputs.py` has the
codes of the outputs, `units.py` compares the ops that the runtime executed with the plan, and `processors.py` says whether the
runner's processor computes what the target describes.
"""
