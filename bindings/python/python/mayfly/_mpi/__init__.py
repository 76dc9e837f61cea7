"""What `mayfly.MPI` is made of, beside communicators."""
