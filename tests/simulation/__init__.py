"""Deterministic simulation: the real store functions of several instances, interleaved under a seed."""
