"""Runtime settings: the number of threads of the CPU kernels, and JAX's profile server."""

from __future__ import annotations

import socket
import threading

import jax

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.threads import MOST_THREADS, worker_cap
from jaxkern.core.threads import num_threads as num_threads


def set_num_threads(count: int | None) -> None:
    """Limit the number of threads of the CPU kernels, from the next call on.

    XLA's own operations run in XLA's thread pool, whose size is the process's CPU affinity. Set the
    affinity too (``taskset``, ``srun --cpu-bind=cores``) if the rest of the program matters.

    Args:
      count: maximum number of threads; 0 for XLA's pool as the only limit; None for the limit of
        the environment (``JAXKERN_NUM_THREADS``, else the smallest of SLURM's allocation, the
        control group's quota and the affinity).

    Raises:
      ValueError: if ``count`` is not an integer from 0 to 2**31 - 1.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.set_num_threads(1)
      >>> jaxkern.performance.set_num_threads(None)
    """
    if count is not None:
        count = check_integer("count", count, 0, MOST_THREADS)
    registry.set_max_workers(worker_cap() if count is None else count)


_lock = threading.Lock()
_running: ProfileServer | None = None


class ProfileServer:
    """A running profile server. `stop` or the end of its context stops it.

    Attributes:
      port: port that it listens on.
      address: address to enter in TensorBoard's "capture profile" dialog.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"localhost:{port}"

    def stop(self) -> None:
        """Stop the server; does nothing if it has been stopped."""
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
    """Start JAX's profile server, so that TensorBoard or XProf can profile the running program.

    Args:
      port: TCP port, from 1 to 65535.

    Returns:
      A `ProfileServer`: call ``.stop()``, or use it as a context manager.

    Raises:
      ValueError: if ``port`` is not a valid port.
      OSError: if the port is in use; JAX alone would only log this.
      RuntimeError: if this process already has a server (JAX supports one per process).

    Example:
      >>> from jaxkern import performance
      >>> performance.start_profile_server(0)
      Traceback (most recent call last):
      ValueError: port: expected an integer from 1 to 65535, got 0
    """
    global _running
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValueError(f"port: expected an integer from 1 to 65535, got {port!r}")
    with _lock:
        if _running is not None:
            raise RuntimeError(f"a profile server is running at {_running.address}; stop it first")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise OSError(
                    error.errno, f"port {port} is not available: {error.strerror}"
                ) from error
        try:
            jax.profiler.start_server(port)
        except ValueError as error:
            raise RuntimeError(
                "jax.profiler.start_server has already started a server; call "
                "jax.profiler.stop_server() first"
            ) from error
        _running = ProfileServer(port)
        return _running
