"""Whether the process in this container does its work: the images' health checks run it.

It imports little, for it runs twice a minute.
"""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

SECRET = Path("/run/secrets/racewatch_database_url")
TIMEOUT_S = 5.0
WORKERS = """
SELECT state, extract(epoch FROM now() - heartbeat_at)::float8 FROM workers
WHERE host = %s AND state IN ('live', 'draining') ORDER BY heartbeat_at DESC LIMIT 1
"""


def main() -> int:
    """`service` or `worker`: exit status 0 and nothing said where it does its work, else 1."""
    said = {"service": service, "worker": worker}[sys.argv[1]]()
    if said:
        print(said)
    return 1 if said else 0


def service() -> str:
    """What keeps the service from its work, empty where nothing does."""
    port = os.environ.get("RACEWATCH_PORT", "8000")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return error.read(1000).decode(errors="replace")
    except OSError as error:
        return f"the service does not answer on port {port}: {error}"


def worker() -> str:
    """What keeps this host's worker from its work, empty where nothing does.

    It says every few seconds in the database that it lives.
    """
    import psycopg

    url = os.environ.get("RACEWATCH_DATABASE_URL") or os.environ.get("DATABASE_URL")
    lost_s = float(os.environ.get("RACEWATCH_WORKER_LOST_S", "30"))
    try:
        url = url or SECRET.read_text(encoding="utf-8").strip()
        with psycopg.connect(
            url.replace("+psycopg", "", 1), connect_timeout=int(TIMEOUT_S)
        ) as connection:
            found = connection.execute(WORKERS, [socket.gethostname()]).fetchone()
    except (OSError, psycopg.Error) as error:
        return f"the database does not answer: {str(error).splitlines()[0]}"
    if found is None:
        return "no worker of this host has registered"
    state, silent = found
    return "" if silent < lost_s else f"the worker ({state}) said nothing for {silent:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
