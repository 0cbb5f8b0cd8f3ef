"""Ranges of tensors during calibration, and the warnings where they leave few codes."""
