"""Would catch: a profile server that does not listen or stop, and errors that do not tell why."""

from __future__ import annotations

import socket

import jax
import pytest

from jaxkern import performance


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def listens(port):
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex(("localhost", port)) == 0


def test_it_listens_until_it_is_stopped():
    port = free_port()
    with performance.start_profile_server(port) as server:
        assert server.address == f"localhost:{port}"
        assert listens(port)
        with pytest.raises(RuntimeError, match=f"runs at localhost:{port}"):
            performance.start_profile_server(free_port())
    assert not listens(port)
    server.stop()
    with performance.start_profile_server(free_port()) as again:
        assert listens(again.port)


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} cannot be used"):
            performance.start_profile_server(port)


def test_a_server_that_jax_started():
    jax.profiler.start_server(free_port())
    try:
        with pytest.raises(RuntimeError, match=r"jax\.profiler\.stop_server"):
            performance.start_profile_server(free_port())
    finally:
        jax.profiler.stop_server()


@pytest.mark.parametrize("port", [0, 65536, "80", True])
def test_what_is_no_port(port):
    with pytest.raises(ValueError, match="wanted an integer from 1 to 65535"):
        performance.start_profile_server(port)
