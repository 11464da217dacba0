"""msgworker inside other frameworks; each is imported only by those who use it."""
