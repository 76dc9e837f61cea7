//! Lease, connect, invoke, retry: the microsecond path.
