"""Engines for language models: weights of few bits in blocks, and inputs that are quantized at run time."""
