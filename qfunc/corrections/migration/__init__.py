"""Scale migration: factors of channels, moved from the inputs of linear layers into their weights.

`smooth.py` chooses them by ranges, for scales of activations; `awq.py` by the error of the outputs, for scales of weights.
"""
