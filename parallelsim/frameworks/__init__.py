"""Training software as data: one YAML file each, every number with its source."""
