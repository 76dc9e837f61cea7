//! The one-sided transport contract and its backends: shm, tcp, inproc.
