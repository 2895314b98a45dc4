"""From a config to a record: the Lightning module, its probes, and the detector of divergence."""
