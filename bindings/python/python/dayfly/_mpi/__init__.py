"""What `dayfly.MPI` is made of, beside communicators."""
