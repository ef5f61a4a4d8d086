"""The application behind a real server on a port of its own, for tests of streams and browsers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from service.app import create_app
from service.database import Database
from service.live import Feed, Server
from service.settings import ServiceSettings


@dataclass(frozen=True)
class Served:
    """A running server. address: its URL, without a slash at the end."""

    address: str
    app: FastAPI
    server: Server
    thread: threading.Thread

    @property
    def feed(self) -> Feed:
        """What its open pages are fed by."""
        feed: Feed = self.app.state.feed
        return feed


@contextmanager
def served(database: Database, home: Path, port: int = 0) -> Iterator[Served]:
    """The application on a database, in a thread of this process; port 0 is any that is free."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        settings = ServiceSettings(home=home, config=None, port=port)
        app = create_app(settings, database)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        server = Server(config, app.state.feed)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{port}", app, server, thread)
        finally:
            app.state.feed.stop()
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "an open stream held the server up"
