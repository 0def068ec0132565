"""Python functions of the commands, which ``import pinn`` loads on first use.

Commands call these functions or parts of them. The arguments have the names of the options.
"""
