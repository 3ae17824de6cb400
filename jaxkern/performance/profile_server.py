"""The profile server that TensorBoard and XProf capture from."""

from __future__ import annotations

import socket
import threading

import jax

_lock = threading.Lock()
_running: ProfileServer | None = None


class ProfileServer:
    """A running profile server; `stop` ends it, as leaving its context does.

    Attributes:
      port: that it listens on.
      address: for TensorBoard's "capture profile".
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"localhost:{port}"

    def stop(self) -> None:
        """Ends the server; harmless when it has ended."""
        global _running
        with _lock:
            if _running is self:
                jax.profiler.stop_server()
                _running = None

    def __enter__(self) -> ProfileServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"ProfileServer({self.address})"


def start_profile_server(port: int = 9999) -> ProfileServer:
    """Starts JAX's profile server, from which profiles of a running program are captured.

    Args:
      port: of this machine, 1 to 65535.

    Returns:
      A `ProfileServer`: stop it with ``.stop()`` or use it as a context manager.

    Raises:
      ValueError: when ``port`` is not a port.
      OSError: when another program has the port.
      RuntimeError: when this process has a server already (JAX allows one).

    Example:
      >>> from jaxkern import performance
      >>> performance.start_profile_server(0)
      Traceback (most recent call last):
      ValueError: port is 0; wanted an integer from 1 to 65535
    """
    global _running
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValueError(f"port is {port!r}; wanted an integer from 1 to 65535")
    with _lock:
        if _running is not None:
            raise RuntimeError(
                f"a profile server runs at {_running.address}; JAX allows one in a process: stop "
                "it first"
            )
        # XLA's server logs a port that is taken and goes on without it.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"port {port} cannot be used: {error.strerror}; wanted one that is free",
                ) from error
        try:
            jax.profiler.start_server(port)
        except ValueError as error:
            raise RuntimeError(
                "a profile server was started by jax.profiler.start_server; JAX allows one in a "
                "process: call jax.profiler.stop_server() first"
            ) from error
        _running = ProfileServer(port)
        return _running
