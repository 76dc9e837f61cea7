"""Errors of MPI, for the programs of this folder."""

from mpi4py import MPI


def error_class(call):
    """Calls a function. Returns the class of its error, or MPI.SUCCESS."""
    try:
        call()
    except MPI.Exception as error:
        return error.Get_error_class()
    return MPI.SUCCESS
