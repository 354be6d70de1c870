"""A local TCP port that leads to a pod's port through the Kubernetes API, one forwarded connection for each local one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from eks_ray_train.errors import UsageError

CHUNK = 64 * 1024


class PortForward:
    """Context manager. ``open_remote`` makes one connection to the pod (a socket) and is called for every local client;
    where it fails the local connection is closed, which the HTTP client above sees as a broken connection and tries again.

    ``last_error``: why the latest connection could not be made, None where it could.
    """

    def __init__(self, open_remote: Callable[[], Any], *, local_port: int = 0) -> None:
        self._open_remote = open_remote
        self.last_error: Exception | None = None
        self._closed = threading.Event()
        self._sockets: set[Any] = set()
        self._lock = threading.Lock()
        try:
            self._server = socket.create_server(("127.0.0.1", local_port))
        except OSError as error:
            raise UsageError(f"cannot listen on 127.0.0.1:{local_port} ({error.strerror}); choose another --port") from None
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> PortForward:
        threading.Thread(target=self._accept, name="port-forward", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        # accept() does not wake up when another thread closes its socket: knock on it.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            pass
        self._server.close()
        with self._lock:
            left = list(self._sockets)
        for one in left:
            self._end(one)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self._closed.is_set():
                client.close()
                return
            threading.Thread(target=self._serve, args=(client,), name="port-forward-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            remote = self._open_remote()
        except Exception as error:  # told by whoever finds the dashboard unreachable
            self.last_error = error
            client.close()
            return
        self.last_error = None
        with self._lock:
            self._sockets |= {client, remote}
        back = threading.Thread(target=self._copy, args=(remote, client), name="port-forward-back", daemon=True)
        back.start()
        self._copy(client, remote)
        back.join()
        for one in (client, remote):
            self._end(one)

    def _copy(self, source: Any, sink: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(CHUNK):
                sink.sendall(data)
        # HTTP needs no half-closed connections: the end of one direction is the end of both.
        for one in (source, sink):
            with contextlib.suppress(OSError, ValueError):
                one.shutdown(socket.SHUT_RDWR)

    def _end(self, one: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            one.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, ValueError):
            one.close()
        with self._lock:
            self._sockets.discard(one)
