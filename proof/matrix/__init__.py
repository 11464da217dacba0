"""What was run on which server; and what takes the place of a driver that a Python lacks."""
