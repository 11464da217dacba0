"""Scenarios that measure msgworker on real databases, beside the prototypes and the server's limit."""
