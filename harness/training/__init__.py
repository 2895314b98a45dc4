"""From a config to a record: the Lightning module, its probes, and what becomes of it."""
