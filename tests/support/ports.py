"""Ports for the servers that tests start."""

import pathlib
import subprocess

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "brokers/free-port"


def free_port():
    """A port that nobody listens on, and that no other test gets: the script reserves it for an hour."""
    return int(subprocess.run([SCRIPT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
