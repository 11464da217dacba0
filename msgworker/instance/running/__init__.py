"""Lanes wait for threads, threads call handlers, handlers end in an outcome.

In order: hand, lanes, handlerthreads, calling, transacting, gathering, batchsize, batchcall,
batchtransaction, handler, signature, context, batchcontext, judging, outcome, backoff, asyncloop,
traces, traced.
"""
