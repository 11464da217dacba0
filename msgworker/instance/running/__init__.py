"""Lanes wait for threads, threads call handlers, handlers end in an outcome.

In order: in_flight, pool, call, on_loop, batch, transactions, handler, context, outcome,
traceback, spans.
"""
