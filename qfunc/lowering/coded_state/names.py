"""The names by which a file describes the codes of its state, without onnx, which targets do not load."""

CODES, PACKED = ".codes", ".packed"
"""The suffixes of tensors of codes, and of bytes of two codes."""

SCALE_KEY, ZERO_POINT_KEY = "SCALE_TENSOR", "ZERO_POINT_TENSOR"
"""ONNX, TensorAnnotation.quant_parameter_tensor_names."""
