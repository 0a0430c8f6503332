"""capsella: capsule networks in PyTorch."""
__version__ = "0.1.0"
