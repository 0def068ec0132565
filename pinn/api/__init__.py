"""The commands as functions: ``import pinn`` finds them here on first use.

Commands call these functions or parts of them. Arguments have the names of the options.
"""
