"""Advice: where an instance looks, and who of many does a thing. Never who may write: the message
table alone decides that."""
