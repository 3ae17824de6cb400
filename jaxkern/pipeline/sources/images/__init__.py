"""Encoded images: fields, headers, decoding and sources."""
