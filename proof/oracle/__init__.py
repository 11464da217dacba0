"""A stand-in for an Oracle server: SQLAlchemy's own `oracle+oracledb` dialect, unmodified, over
MariaDB in its Oracle mode.

The driver's types and exceptions are its own; its connections and cursors are ours.

  standins    which URL means which stand-in; takes the place of `oracledb.connect`
  driver      a connection and a cursor as the driver's
  values      values on their way to the engine and back, as the driver and Oracle have them
  text        statements cut into tokens, calls and parameters
  mariadb     Oracle's SQL for MariaDB in sql_mode=ORACLE: real locks between sessions
  dictionary  Oracle's views of its catalogue, from those of MariaDB
  errors      the engines' errors as Oracle's
  faults      errors injected at a statement or at a COMMIT
  trial       a few messages handled while one of them comes, and judged
  ended       a session of PostgreSQL that is ended at the n-th statement, beside which that stands
  counting    round trips, statements and parses per message
  schema      the schema of a real Oracle's login, emptied for each test
  live        the plans and the speed that proof/oracle_live.sh asks a real Oracle for
  codes       what each code of Oracle's and of its drivers means
  with_cx_oracle  its own errors, where cx_Oracle is installed
"""
