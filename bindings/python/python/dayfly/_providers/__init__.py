"""Providers of blocks of nodes for endpoints: batch systems, through Parsl's providers, and clouds.

Runs as ``python -m dayfly._providers``. Each line of standard input is a request in JSON, and each line of standard
output is the response to one request. It ends with its input. The first request names the provider:

    {"kind": "slurm", "options": {"partition": "idle"}, "directory": "/scratch/blocks"}
    {"ready": "slurm", "libraries": "parsl 2026.10.26"}

``submit``, ``status`` and ``cancel`` follow, see `provider.Provider`. The response ``failed`` reports an error, and
``refused`` a job that the provider does not accept, with the provider's reason.
"""
