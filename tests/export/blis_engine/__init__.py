"""Model of BLIS's handling of its files, from its documented behaviour.

It is independent of ``pinn.export``, so that a mistake there is found. It has BLIS's flags, its
reading of a config.json with its refusals, its KV blocks and its step time. Its engine is written
in Go, in the folder simulator, through which the adapter runs too.
"""
