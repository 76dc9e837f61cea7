//! The agent on one host: verifies leases, starts and supervises executors, meters them.
