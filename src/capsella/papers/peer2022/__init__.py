"""Limitation of Capsule Networks."""
