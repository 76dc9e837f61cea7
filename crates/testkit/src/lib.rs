//! In-process cluster, fake clock, fault injection. Dev-dependency only.
