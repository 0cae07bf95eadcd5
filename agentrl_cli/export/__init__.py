"""Checkpoints handed on to other programs."""
