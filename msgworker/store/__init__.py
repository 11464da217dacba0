"""All statements of the library, one file per action.

Functions take a Connection first and run in the caller's transaction, unless stated otherwise. The
files in the order of a message's life:

tables   schema, additions, reflection, requirements, ddl_script, rule
send     send
claim    candidates, due, slices, slices_by_age, claim, following, rows
settle   settle, done, tries, fingerprint
fan out  items
recover  lease, recover
scopes   scopes, deal, locks
look     find, info, counts, waiting, failures, explain, ending, instances, left, order, window,
         doctor
write    change, purge, pause, audit
"""
