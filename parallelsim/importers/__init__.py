"""Launch scripts of today: what they train, and how, as a model and a plan."""
