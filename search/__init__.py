"""The search layer: spaces of plans and the searchers that rank them."""
