"""Write outcomes and tries, move the flag.

In order: settle, done, tries, fingerprint.
"""
