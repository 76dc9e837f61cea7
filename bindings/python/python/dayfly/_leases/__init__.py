"""Leases of workers, and calls on them."""
