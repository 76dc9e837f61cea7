"""``dayfly sql``: SQL from the shell, over leased ranks."""
