//! Measures Mayfly beside the machine's own limits, in the same run.
