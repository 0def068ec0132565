"""HTTP service: the functions of ``import pinn`` behind endpoints of the same names."""
