"""Lanes wait for threads, threads call handlers, handlers end in an outcome.

In order: hand, lanes, handlerthreads, handlerwatch, calling, transacting, handler, context,
judging, outcome, backoff, asyncloop, traces.
"""
