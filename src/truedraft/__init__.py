"""DFlash speculative decoding that is proven to work, not only started."""

__version__ = "0.1.0"
