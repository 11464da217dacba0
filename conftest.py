"""What the tests in tests/ and in proof/ share: fixtures, servers, and which test is long."""

pytest_plugins = ["tests.plugin"]
