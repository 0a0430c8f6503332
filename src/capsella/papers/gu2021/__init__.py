"""Capsule Network is Not More Robust than Convolutional Network."""
