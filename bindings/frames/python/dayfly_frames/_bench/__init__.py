"""``dayfly bench frames``: queries across ranks, beside other engines in the same run."""
