"""What BLIS does with the files that it is given, from its documented behaviour.

Written apart from ``pinn.export``, so that a mistake there shows: its flags, its reading
of a config.json with its refusals, its KV blocks and its step time. Its engine stands in Go, in the
folder simulator, where the adapter runs through it too.
"""
