"""What an endpoint starts to have blocks of nodes: from a batch system by Parsl's providers, or from a cloud.

Runs as ``python -m dayfly._providers``. Each line of its standard input is a request in JSON, each line of its standard
output the answer to one; it ends with its input. The first request says where nodes come from:

    {"kind": "slurm", "options": {"partition": "idle"}, "directory": "/scratch/blocks"}
    {"ready": "slurm", "libraries": "parsl 2026.10.26"}

Then ``submit``, ``status`` and ``cancel``, see `provider.Provider`. What cannot be done is answered by ``failed``, and
a job that is not wanted by ``refused``, in the words of whoever does not want it.
"""
