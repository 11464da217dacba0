"""Random rows among good ones, and random tables to adopt; `python -m proof.fuzz --help`."""
