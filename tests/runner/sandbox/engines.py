"""A Docker engine of a test's own, which can be killed while this host's others go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import docker

from tests.conftest import Needs

START_S = 60.0
PRIVATE = "racewatch-test"


class Engine:
    """A Docker engine below a folder, apart from this host's own."""

    def __init__(self, folder: Path) -> None:
        self.host = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        folder = self._folder
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    # In a network of its own: without a bridge it would remove the host's docker0.
                    *("unshare", "--net", "--"),
                    *("dockerd", "--host", self.host, "--data-root", str(folder / "data")),
                    *("--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")),
                    *("--bridge", "none", "--iptables=false"),
                    # Also where both share the host's containerd.
                    *("--containerd-namespace", PRIVATE),
                    *("--containerd-plugins-namespace", f"{PRIVATE}-plugins"),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        with closing(self.client()) as client:
            try:
                return bool(client.ping())
            except (docker.errors.DockerException, OSError):
                return False

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.host, version="1.41", timeout=60)

    def kill(self) -> None:
        """As when it crashes: its containers go on for the time being."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        # Its containerd dies with it; where nobody reaps that, its number looks like a living one.
        (self._folder / "exec" / "containerd" / "containerd.pid").unlink()

    def stop(self) -> None:
        """In order, with all its containers and its own containerd."""
        if self._process is not None and self._process.poll() is not None:
            self.start()
        with closing(self.client()) as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        # What an engine mounts over its folder stays when it is killed.
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in reversed(mounted):
            if Path(place).is_relative_to(self._folder):
                subprocess.run(["umount", place], check=True)


@contextmanager
def engine_with(
    other: docker.DockerClient, image: str, folder: Path, needs: Needs
) -> Iterator[Engine]:
    """An engine of one's own in a folder, to be killed at will, with an image of another engine.

    The folder's path is short: that of a socket in it may have 107 bytes.
    """
    able = os.getuid() == 0 and shutil.which("dockerd") and shutil.which("unshare")
    needs(able, "dockerd, unshare and root to start an engine with")
    own = Engine(folder)
    own.start()
    try:
        with closing(own.client()) as client:
            client.images.load(other.images.get(image).save(named=True))
        yield own
    finally:
        own.stop()
        shutil.rmtree(folder)
