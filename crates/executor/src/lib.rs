//! The user-code side: warm parent, workers, dispatch loop, function loading.
