"""The catalogue of models: one YAML file each, every number with its source."""
