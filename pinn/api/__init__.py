"""The commands as functions: ``import pinn`` finds them here when they are first used.

Commands call them, or what they call; arguments have the names of the options.
"""
