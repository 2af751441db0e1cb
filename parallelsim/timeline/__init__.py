"""The exact engine: operation lists of every pipeline schedule, replayed with the costs of the stages."""
