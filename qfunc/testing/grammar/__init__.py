"""A grammar of networks as model authors write them: each seed is the text of a Python program.

`families` draws a program; `draft` runs each statement while it is written; the other files hold the blocks.
"""
