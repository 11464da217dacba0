"""Write outcomes and tries, move the flag.

In order: settle, together, done, batch, tries, fingerprint.
"""
