"""Generalized Capsule Networks with Trainable Routing Procedure."""
