"""Other queues, and our last release, doing the same work on the same PostgreSQL in the same run:
`make bench-peers`.

peer.py says which and how they are set up, install.py gets them into folders of their own,
running.py has them work and reads their logs, turns.py asks for the work of all and of msgworker.
`scripts/` runs in the peers' environments, not in ours.
"""
