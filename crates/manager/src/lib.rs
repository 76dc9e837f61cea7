//! The control plane: HTTP API, placement, leases, ledger, events.
