"""Error of the stand-in."""


class RefusedError(Exception):
    """Error or panic that ends BLIS."""
