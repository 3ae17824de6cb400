"""Packing by lists, one document after the other: what the native one is compared with."""

from __future__ import annotations

import numpy as np


def slow_rows(lengths, length, method, long="error", max_open_bins=64):
    """Rows of (document, start, count), in the order in which they are complete."""
    done, bins = [], []

    def close(bin):
        bins.remove(bin)
        done.append(bin)

    def room(bin):
        return length - sum(count for _, _, count in bin)

    def place(piece):
        if piece[2] == length:
            done.append([piece])
            return
        if method == "best-fit":
            fitting = sorted((b for b in bins if room(b) >= piece[2]), key=room)
        else:
            fitting = [b for b in bins if room(b) >= piece[2]]
        if not fitting:
            if len(bins) == (1 if method == "concat-split" else max_open_bins):
                close(min(bins, key=room))
            bins.append([])
            fitting = bins[-1:]
        fitting[0].append(piece)
        if room(fitting[0]) == 0:
            close(fitting[0])

    back = 256 * (1 if method == "concat-split" else max_open_bins)
    for document, size in enumerate(lengths):
        while bins and document - bins[0][0][0] >= back:
            close(bins[0])
        start = 0
        if size > length and method != "concat-split":
            assert long != "error"
            size = {"split": size, "truncate": length, "drop": 0}[long]
        while start < size:
            count = min(size - start, length)
            if method == "concat-split" and bins:
                count = min(count, room(bins[0]))
            place((document, start, count))
            start += count
            while bins and start < size and document - bins[0][0][0] >= back:
                close(bins[0])
    return done + bins


def slow_arrays(rows, documents, length, pad=0):
    """The four arrays of rows of (document, start, count)."""
    shape = (len(rows), length)
    tokens = np.full(shape, pad, np.int32)
    segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    mask = np.zeros(shape, bool)
    for r, row in enumerate(rows):
        at = 0
        for segment, (document, start, count) in enumerate(row, 1):
            for i in range(count):
                tokens[r, at] = documents[document][start + i]
                segments[r, at], positions[r, at], mask[r, at] = segment, i, i > 0
                at += 1
    return {"tokens": tokens, "segment_ids": segments, "positions": positions, "loss_mask": mask}
