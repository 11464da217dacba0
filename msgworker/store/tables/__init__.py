"""Create and check the tables; the rule that is recorded with them.

In order: schema, upgrade, additions, reflection, requirements, trial, ddl_script, rule,
version.
"""
