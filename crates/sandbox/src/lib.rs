//! Starts processes that cannot outlive or escape their node.
