"""Scenarios that measure msgworker on real databases, beside prototypes and the server's limit."""
