"""HTTP service: the functions of ``import pinn`` as endpoints of the same names."""
