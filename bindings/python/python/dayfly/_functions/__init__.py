"""Functions in the forms in which they travel to workers: their kinds, code, environments and runtimes."""
