"""What ``mpirun`` starts in place of ssh, once for each host: asks the rank of its task there to run what ssh would.

Called as a program, by an interpreter without this package: ``_mpi_agent.py SOCKET [OPTIONS] HOST COMMAND...``.
"""

import json
import socket
import sys


def main() -> int:
    """Ends when the command does, with its status."""
    address, *words = sys.argv[1:]
    # Options are for ssh.
    while words and words[0].startswith("-"):
        del words[0]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        # Several words are one line for the shell there, as ssh has it.
        asked = {"host": words[0], "command": " ".join(words[1:])}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answer = connection.makefile().readline()
    return int(answer or 255)


if __name__ == "__main__":
    sys.exit(main())
