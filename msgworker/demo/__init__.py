"""Real purchases, the rules of a contract discount, and the demonstration that runs on them."""
