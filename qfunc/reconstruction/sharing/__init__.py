"""Reconstruction over the images of several processes.

`parts.py` says which images are whose, `inputs.py` compares the inputs of all processes, and `gradients.py` adds the gradients.
"""
