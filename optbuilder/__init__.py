"""Build an optimized diffusers pipeline from a declaration, run it, and measure it."""

__version__ = "0.1.0"
