"""Ports for the servers that tests start."""

import random
import socket

taken = set()


def free_port():
    """A port that nobody listens on, another one each time.

    It is below the range that the kernel hands to clients (32768 and up on Linux): there, a client could take the port
    before the server listens on it, or while the server is being restarted.
    """
    for port in random.SystemRandom().sample(range(15000, 32000), 17000):
        with socket.socket() as tried:
            if port not in taken and tried.connect_ex(("127.0.0.1", port)) != 0:
                taken.add(port)
                return port
    raise OSError("no port is free between 15000 and 32000")
