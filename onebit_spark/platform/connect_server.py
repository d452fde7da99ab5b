"""Whether a Spark Connect server answers. Spark itself would try for minutes, without a word."""

from __future__ import annotations

import re
import socket

from onebit_spark.errors import RequestError

PORT = 15002
PATIENCE = 10  # seconds


def check_reachable(address: str) -> None:
    """Raise a RequestError if nothing listens at an address such as sc://host:15002/;token=…"""
    found = re.match(r"sc://(\[[^]]+\]|[^:/;]+)(?::(\d+))?", address)
    if found is None:
        return  # local[*] starts a server of its own
    host, port = found[1].strip("[]"), int(found[2] or PORT)
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        raise RequestError(f"no Spark Connect server answers at {host}:{port}: {error}") from None
