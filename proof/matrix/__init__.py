"""The contract suite under other versions: of Python, of SQLAlchemy, of the drivers, and the
oldest of all that pyproject.toml allows.

  cells         which versions go together, as data
  bounds        what pyproject.toml allows
  interpreters  a Python of a version: found, or had from Debian
  running       one cell: its virtual environment, its tests, what came out
  speed         messages a second of the interpreter that runs it
"""
