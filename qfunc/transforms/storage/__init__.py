"""Quantized models on disk."""
