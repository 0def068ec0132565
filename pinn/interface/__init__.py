"""How it is used: the command pinn, its commands as functions of Python, and files for others."""
