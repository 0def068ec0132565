"""Sources of the stand-alone program: the standard library, and vLLM where it runs.

``pinn.calibration.measuring`` joins them into one file in the order of ``MODULES``, since the
machine with the GPU need not have this package. They run under Python 3.10 to 3.12.
"""

#: In the order in which the file has them: each uses only what is before it.
MODULES = ("batches", "table", "engine", "session", "serving", "command")
