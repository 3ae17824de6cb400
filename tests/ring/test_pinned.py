"""Page-locked memory of rings for GPUs.

Would catch: a context on a GPU that the ring does not serve, which takes memory there.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jaxkern.core import registry
from jaxkern.ring import ring


def gpu(ordinal, platform="gpu"):
    return SimpleNamespace(platform=platform, local_hardware_id=ordinal)


@pytest.fixture
def ordinals(monkeypatch):
    """The devices for which allocators are made."""
    asked = []
    cuda = SimpleNamespace(pinned_allocator=asked.append)
    monkeypatch.setattr(registry, "module", lambda name: cuda if name == "cuda" else None)
    return asked


@pytest.mark.parametrize("ordinal", [0, 3])
def test_a_ring_of_one_device_uses_its_context(ordinals, ordinal):
    ring._allocator(gpu(ordinal))
    assert ordinals == [ordinal]


def test_a_ring_of_a_mesh_uses_a_context_of_this_process(ordinals, monkeypatch):
    monkeypatch.setattr(ring, "one_device", lambda device: None)
    ring._allocator(SimpleNamespace(addressable_devices=[gpu(3), gpu(2)]))
    assert ordinals == [2]


def test_no_context_is_made_for_other_rings(ordinals, monkeypatch):
    assert ring._allocator(gpu(0, "cpu")) is None
    monkeypatch.setattr(ring, "one_device", lambda device: None)
    assert ring._allocator(SimpleNamespace(addressable_devices=[gpu(1), gpu(0, "cpu")])) is None
    assert ring._allocator(SimpleNamespace(addressable_devices=[])) is None
    assert ordinals == []
