"""Write outcomes in batches, until it is known what was written.

In order: settler, writer.
"""
