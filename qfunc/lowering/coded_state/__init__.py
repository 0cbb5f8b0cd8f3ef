"""State of a decoder in codes: inputs and outputs of the file, and ONNX Runtime's attention to a cache in codes.

`ends.py` makes ends of the file codes, `cached_attention.py` writes GroupQueryAttention, and `packed_codes.py` reads and
writes bytes of two codes.
"""
