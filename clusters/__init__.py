"""The catalogue of clusters and accelerators: one YAML file each, every number with its source."""
