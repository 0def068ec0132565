"""How it is used: the command pinn, and what its commands do as functions of Python."""
