"""The command pinn."""
