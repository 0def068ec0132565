"""What the commands do, as functions: ``import pinn`` finds them here when they are first used.

Each calls what its command calls; arguments have the names of the options.
"""
