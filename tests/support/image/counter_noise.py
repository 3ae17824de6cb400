"""The random numbers of noise and elastic warps in NumPy, as in csrc/image/random.h."""

from __future__ import annotations

import numpy as np


def threefry(key, counter):
    """Return two words u32 [n] of counters u64 [n] for a key of two words: Threefry-2x32-20."""
    key = [np.uint32(word) for word in key]
    key.append(key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    counter = np.asarray(counter, np.uint64)
    with np.errstate(over="ignore"):
        x = (counter >> np.uint64(32)).astype(np.uint32) + key[0]
        y = (counter & np.uint64(0xFFFFFFFF)).astype(np.uint32) + key[1]
        for group in range(5):
            for angle in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                x = x + y
                y = ((y << np.uint32(angle)) | (y >> np.uint32(32 - angle))) ^ x
            x = x + key[(group + 1) % 3]
            y = y + key[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def words(seed, count):
    """Return the words of a seed int32 [2] for the counters from 0."""
    return threefry(np.asarray(seed, np.int32).view(np.uint32), np.arange(count))


def uniforms(seed, height, width):
    """Return uniform(-1, 1) numbers f64 [2, height, width], for x and y."""
    both = np.stack(words(seed, height * width)) >> np.uint32(8)
    return both.reshape(2, height, width) * 2.0**-23 - 1.0


def normals(seed, shape):
    """Return normal numbers f64 of `shape` by the Box-Muller method."""
    count = int(np.prod(shape))
    a, b = words(seed, (count + 1) // 2)
    radius = np.sqrt(-2.0 * np.log((a + 0.5) * 2.0**-32))
    angle = 2.0 * np.pi * (b * 2.0**-32)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return pairs.reshape(-1)[:count].reshape(shape)
