//! Pure lease policy: capability tokens, lease state machine, resource ledger, placement and billing arithmetic.
