"""Refusals of models that no frontend can capture: a file for each reason."""
