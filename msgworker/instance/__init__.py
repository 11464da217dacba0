"""The threads of one running instance, one subject per file: no SQL, nothing of other instances.

The files in the order of a message's life:

claim       fetcher (the claim loop), room, appetite, emptying, quiesce, finder, search, slicing,
            slicing_by_age, seat, unhandled, refusals, claimer, pollpace, draining, drainend
run         hand, lanes, handlerthreads, calling, handler, context, outcome, backoff, asyncloop,
            traces
fan out     fanout, fanned, itemrun, itemkeys, hands, recorder, fence
settle      settler, settlements, untilknown
stay alive  identity, heartbeat, ownlease, handlerwatch, recovery, ruling, watchdog
as a whole  working, worker, instance, runtime, role, links, listener, forks, stopping, telling,
            report
"""
