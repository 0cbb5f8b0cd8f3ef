"""ONNX Runtime as the evaluator of Q/DQ models."""
