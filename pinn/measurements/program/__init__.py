"""Sources of the stand-alone program: the standard library, and vLLM where it runs.

``pinn.calibration.measuring`` joins them into one file in the order of ``MODULES``, since the
machine with the GPU need not have this package. They run under Python 3.10 to 3.12.
"""

#: Modules in the order of the file: each uses only those before it.
MODULES = ("batches", "table", "engine", "session", "serving", "command")
