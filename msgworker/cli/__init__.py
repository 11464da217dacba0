"""The command line: arguments to calls, text out. No SQL, and no rule of the protocol, lives here.

Data goes to stdout; logs, progress, questions and errors go to stderr. Whatever comes from the
database is shown through `output.safe`, never raw.
"""

from msgworker.cli.group import main

__all__ = ["main"]
