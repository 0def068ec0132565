"""HTTP service: functions of ``import pinn`` behind endpoints of equal names."""
