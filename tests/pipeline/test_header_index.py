"""The index of headers: would catch a changed file that is not read again, one of another folder
that is taken for it, and an index that is damaged, of another version or read only."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import PIL.Image
import pytest
from support.errors import raises

from jaxkern.core import registry
from jaxkern.pipeline import Encoded, ImageFiles, ImageFolder
from jaxkern.pipeline.sources.images import headers

OLD = 1_600_000_000  # seconds: a file that has just changed may change again unseen


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def read(monkeypatch):
    """The names of the files whose headers were read, in order."""
    names = []

    def noted(images, original=headers.read_headers):
        names.extend(os.path.basename(bytes(images[k])).decode() for k in range(len(images)))
        return original(images)

    monkeypatch.setattr(headers, "read_headers", noted)
    return names


def save(path, height, width, when=OLD):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(path)
    os.utime(path, (when, when))


@pytest.fixture
def root(tmp_path):
    """40 files of two kinds, of different sizes."""
    for k in range(40):
        save(tmp_path / "ab"[k % 2] / f"{k:02}.{['jpg', 'png'][k % 4 == 0]}", 10 + k, 60 - k)
    return tmp_path


def sizes(source):
    return source.images["image"].headers.size.tolist()


def expected(source):
    found = []
    for path in source.files:
        try:
            with PIL.Image.open(path) as image:
                found.append([image.height, image.width])
        except OSError:
            found.append([0, 0])
    return found


def test_headers_are_read_once(root, read, cache):
    source = ImageFolder(root, index=True)
    assert read == []  # nothing has asked for them
    assert sizes(source) == expected(source)
    assert len(read) == 40
    read.clear()
    again = ImageFolder(root, index=True)
    assert sizes(again) == expected(again)
    assert again.images["image"].headers.counts() == {"JPEG": 30, "PNG": 10}
    assert read == []
    (index,) = (cache / "jaxkern" / "images").iterdir()
    assert index.name.startswith(root.name)


def test_what_changed_is_read_again(root, read):
    index = root / "headers.index"
    source = ImageFolder(root, index=index)
    sizes(source)
    read.clear()
    longer, touched, gone, broken = (source.files[k] for k in (3, 9, 20, 30))
    save(longer, 100, 7)
    content = touched.read_bytes()
    save(touched, *[int(n) for n in reversed(expected(source)[9])])  # another image
    touched.write_bytes(touched.read_bytes().ljust(len(content), b"\0")[: len(content)])
    os.utime(touched, (OLD + 1, OLD + 1))
    gone.unlink()
    broken.write_bytes(b"")
    os.utime(broken, (OLD, OLD))
    save(root / "a" / "00-new.png", 3, 4)
    changed = ImageFolder(root, index=index)
    assert sizes(changed) == expected(changed)
    assert sorted(read) == sorted(["00-new.png", longer.name, touched.name, broken.name])
    read.clear()
    again = ImageFolder(root, index=index)
    assert sizes(again) == expected(again)
    assert read == []


def test_a_file_that_has_just_changed_is_read_next_time_too(root, read):
    path = ImageFolder(root).files[5]
    os.utime(path)
    for _ in range(2):
        sizes(ImageFolder(root, index=True))
    assert read.count(path.name) == 2
    assert len(read) == 41


def test_an_index_is_not_trusted_after_a_slow_read(root, monkeypatch):
    """The file may have changed again after its header was read."""
    path = ImageFolder(root).files[5]
    os.utime(path)
    when = path.stat().st_mtime_ns
    read = headers.read_headers

    def slowly(images):
        found = read(images)
        later = time.time_ns() + 60_000_000_000
        patched.setattr(headers.time, "time_ns", lambda: later)
        size = path.stat().st_size
        PIL.Image.fromarray(np.zeros((7, 9, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
        os.utime(path, ns=(when, when))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(headers, "read_headers", slowly)
        assert sizes(ImageFolder(root, index=True))[5] != [7, 9]
    assert sizes(ImageFolder(root, index=True))[5] == [7, 9]


def test_lists_of_files_share_an_index(root, read):
    files = sorted(root.rglob("*.jpg"))
    for part in (files[:20], files[10:], files[::-1]):
        source = ImageFiles(part, index=root / "index")
        assert sizes(source) == expected(source)
    assert sorted(read) == sorted(path.name for path in files)
    one = ImageFiles(files[:1], index=root / "index")
    assert sizes(one) == expected(one)
    assert len(read) == len(files)


@pytest.mark.parametrize("damage", ["cut", "flipped", "another version", "empty", "not its own"])
def test_a_damaged_index_is_made_anew(root, read, damage):
    index = root / "index"
    source = ImageFolder(root, index=index)
    sizes(source)
    content = index.read_bytes()
    middle = len(content) // 2
    damaged = {
        "cut": content[:-7],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "another version": content.replace(b'"version": 2', b'"version": 9'),
        "not its own": b"PK another archive",
    }
    index.write_bytes(damaged.get(damage, b""))
    assert headers.read_header_index(index) is None
    read.clear()
    assert sizes(ImageFolder(root, index=index)) == expected(source)
    assert len(read) == 40
    assert index.read_bytes() == content


def test_small_folders_and_those_that_want_none_leave_no_file(root, cache):
    for index in (None, False):
        sizes(ImageFolder(root, index=index))
    assert not any(cache.iterdir())
    sizes(ImageFolder(root, index="/proc/none/index"))  # where nothing can be written


def test_without_native_code_it_is_the_same(root, monkeypatch):
    native = ImageFolder(root)
    sizes(native)
    stamps = native.images["image"].headers.stamp
    monkeypatch.setattr(registry, "module", lambda platform="cpu": None)
    source = ImageFolder(root, index=True)
    assert sizes(source) == expected(source)
    found = source.images["image"].headers
    np.testing.assert_array_equal(found.stamp, stamps)
    assert found.counts() == {"JPEG": 30, "PNG": 10}


def test_headers_behind_large_previews(tmp_path):
    image = PIL.Image.fromarray(np.zeros((33, 44, 3), np.uint8))
    profile = np.random.default_rng(0).bytes(300_000)  # in front of the frame
    image.save(tmp_path / "a.jpg", icc_profile=profile)
    assert sizes(ImageFiles([tmp_path / "a.jpg"])) == [[33, 44]]


def test_what_is_no_regular_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").mkdir()
    found = []
    source = ImageFiles([tmp_path / name for name in ("a.jpg", "b.jpg", "gone.jpg")])
    thread = threading.Thread(target=lambda: found.append(sizes(source)), daemon=True)
    thread.start()
    thread.join(20)
    assert found == [[[0, 0]] * 3]


def test_native_entries_check_what_they_are_given():
    native = registry.module("cpu")
    blob = np.zeros(5, np.uint8)
    sizes = np.zeros((1, 2), np.int32)
    far = 2**62
    ends = [0, 0, 6], [0, -1, 2], [0, 5, 1], [0, 3, far], [0, far, far]
    for place in (*ends, [1, 0, 1], [-1, 0, 1]):
        with raises(IndexError, "[0]", str(tuple(place))):
            native.jpeg_sizes([blob], np.array([place]), 2, sizes)
    place = np.zeros((2, 3), np.int64)
    with raises(ValueError, "2 rows", "got 1"):
        native.jpeg_sizes([blob], place, 2, sizes)
    with pytest.raises(TypeError):
        native.jpeg_sizes([blob], place[:, :2], 2, sizes)
    with pytest.raises(TypeError):
        native.stamp_files([blob], place, 2, np.zeros((2, 2), np.int32))
    cut = Encoded([b"\xff\xd8\xff", b"\xff\xd8", b"\xff", b""])
    assert cut.headers.size.tolist() == [[0, 0]] * 4
