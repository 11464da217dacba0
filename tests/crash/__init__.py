"""Real processes, real databases, real kills, judged by the history checker."""
