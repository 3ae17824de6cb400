"""Would catch a cache that a second process misses, wrong counts, and unclear errors."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support.core.processes import python_output
from support.errors import raises

from jaxkern import performance

JAX_SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
}

# A kernel in a jitted function, which compiles faster than JAX's default threshold.
PROGRAM = """
import sys, jax, jax.numpy as jnp, numpy as np
import jaxkern as jk
report = jk.performance.enable_persistent_cache(sys.argv[1])
chain = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Normalize(0.5, 0.25)], dtype=jnp.float32)
images = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
fn = jax.jit(lambda x: 2 * chain(jax.random.key(0), x))
assert "jaxkern.image_chain" in fn.lower(images).compile().as_text()
out = np.asarray(fn(images))
print(report.hits, report.misses, report.entries, float(out.sum()))
print(report)
"""


def run(folder):
    output = python_output(PROGRAM, None, folder)
    hits, misses, entries, total = output.splitlines()[0].split()
    assert f"{hits} hits, {misses} misses" in output
    return int(hits), int(misses), int(entries), float(total)


def test_second_process_hits_the_cache_of_the_first(tmp_path):
    folder = tmp_path / "deep" / "cache"
    first, second = run(folder), run(folder)
    # fn is compiled twice: ahead of time, and at its call.
    assert first[1] > 0
    assert first[1] == first[2] == len(list(folder.glob("*-cache")))
    assert second[1] == 0
    assert second[0] == first[0] + first[1]
    assert second[2:] == first[2:]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """JAX's own settings of the cache, before and after."""
    tests = {name: getattr(jax.config, name) for name in JAX_SETTINGS}
    for name, value in JAX_SETTINGS.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    performance.disable_persistent_cache()
    for name, value in tests.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_hits_and_misses_of_two_folders(tmp_path):
    x = jax.block_until_ready(jnp.arange(3.0))

    def compile_again():
        jax.jit(lambda y: y * 3 + 1).lower(x).compile()
        jax.clear_caches()

    first = performance.enable_persistent_cache(tmp_path / "a")
    compile_again()
    compile_again()
    assert (first.hits, first.misses, first.entries) == (1, 1, 1)
    assert first.bytes > 0
    second = performance.enable_persistent_cache(str(tmp_path / "b"))
    compile_again()
    assert (second.hits, second.misses, second.entries) == (0, 1, 1)
    assert (first.hits, first.misses) == (1, 1)
    performance.disable_persistent_cache()
    compile_again()
    assert (second.hits, second.misses, second.entries) == (0, 1, 1)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0


def test_disabling_restores_the_settings(tmp_path):
    def now():
        return {name: getattr(jax.config, name) for name in custom}

    custom = {
        "jax_compilation_cache_dir": str(tmp_path / "mine"),
        "jax_persistent_cache_min_compile_time_secs": 2.5,
        "jax_persistent_cache_min_entry_size_bytes": 7,
        "jax_enable_compilation_cache": False,
    }
    defaults = now()
    try:
        for name, value in custom.items():
            jax.config.update(name, value)
        performance.enable_persistent_cache(tmp_path / "a")
        performance.enable_persistent_cache(tmp_path / "b")
        performance.disable_persistent_cache()
        assert now() == custom
    finally:
        for name, value in defaults.items():
            jax.config.update(name, value)


def test_file_deleted_while_sizes_are_summed(tmp_path, monkeypatch):
    report = performance.CacheReport(tmp_path)
    (tmp_path / "one-cache").write_bytes(b"12345")
    gone = tmp_path / "gone-cache"
    monkeypatch.setattr(report, "_files", lambda: [tmp_path / "one-cache", gone])
    assert report.bytes == 5


def test_path_that_is_not_a_directory(tmp_path):
    with raises(ValueError, "directory"):
        performance.enable_persistent_cache("")
    path = tmp_path / "file"
    path.write_text("")
    for wrong in (path, path / "below"):
        with raises(NotADirectoryError, str(path)):
            performance.enable_persistent_cache(wrong)


def test_directory_without_permission(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.geteuid():
        with raises(PermissionError, "locked"):
            performance.enable_persistent_cache(folder)
    # Permissions do not stop root; a read-only file system does.
    elif Path("/proc/self").is_dir():
        with raises(OSError, "fdinfo"):
            performance.enable_persistent_cache("/proc/self/fdinfo")
    assert jax.config.jax_compilation_cache_dir is None
