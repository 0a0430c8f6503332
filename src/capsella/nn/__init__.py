"""Capsule layers: ordinary modules that own parameters and call into ``functional`` and ``routing``."""

from capsella.nn import init
from capsella.nn.base import RoutingLayer, coupling_parameters
from capsella.nn.conv import CapsuleConv2d
from capsella.nn.decoder import Decoder, as_classes
from capsella.nn.linear import CapsuleLinear
from capsella.nn.primary import MatrixPrimaryCapsules, PrimaryCapsules

__all__ = [
    "CapsuleConv2d",
    "CapsuleLinear",
    "Decoder",
    "MatrixPrimaryCapsules",
    "PrimaryCapsules",
    "RoutingLayer",
    "as_classes",
    "coupling_parameters",
    "init",
]
