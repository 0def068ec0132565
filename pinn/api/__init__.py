"""Python functions of the commands, which ``import pinn`` loads on first use.

The commands of the command line call these functions or parts of them, so an argument has the name
of its command-line option.
"""
