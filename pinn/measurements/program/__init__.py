"""Sources of the stand-alone measuring program, which needs only the standard library and vLLM.

``pinn.calibration.measuring`` joins the modules into one file in the order of ``MODULES``, so that
the GPU machine does not need this package. The file runs under Python 3.10 to 3.12.
"""

#: Modules in the order of the measuring program's file. Each module uses only earlier ones.
MODULES = ("batches", "table", "engine", "session", "serving", "command")
