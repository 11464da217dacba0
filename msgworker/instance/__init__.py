"""The threads of one running instance, one role per file."""
