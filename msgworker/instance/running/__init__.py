"""Lanes wait for threads, threads call handlers, handlers end in an outcome.

In order: hand, lanes, handlerthreads, handlerwatch, calling, handler, context, outcome, backoff,
asyncloop, traces.
"""
