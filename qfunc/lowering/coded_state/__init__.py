"""State of a model in codes: `ends.py` makes inputs and outputs of the file codes, `packed_codes.py` has bytes of two codes."""
