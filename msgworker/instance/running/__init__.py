"""Lanes wait for threads, threads call handlers, handlers end in an outcome.

In order: in_flight, pool, call, gather, batch, handler, context, on_loop, outcome, traceback,
spans.
"""
