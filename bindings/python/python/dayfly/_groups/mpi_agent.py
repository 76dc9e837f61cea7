"""The replacement of ssh for ``mpirun``, started once for each host. It asks the task's rank there to run the command.

It runs as a program, in an interpreter without this package: ``mpi_agent.py SOCKET [OPTIONS] HOST COMMAND...``.
"""

import json
import socket
import sys


def main() -> int:
    """Runs the command, and returns its exit status."""
    address, *words = sys.argv[1:]
    # Skip the options for ssh.
    while words and words[0].startswith("-"):
        del words[0]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        # Several words form one command line, as with ssh.
        asked = {"host": words[0], "command": " ".join(words[1:])}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        status = connection.makefile().readline()
    return int(status or 255)


if __name__ == "__main__":
    sys.exit(main())
