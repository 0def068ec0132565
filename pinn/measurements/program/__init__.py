"""Sources of the stand-alone program, which needs only the standard library and vLLM.

``pinn.calibration.measuring`` joins the modules into one file in the order of ``MODULES``, since
the machine with the GPU need not have this package. The file runs under Python 3.10 to 3.12.
"""

#: Modules in the order of the file: each uses only earlier modules.
MODULES = ("batches", "table", "engine", "session", "serving", "command")
