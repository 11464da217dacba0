"""Deterministic simulation: several instances interleaved step by step under a seed."""
