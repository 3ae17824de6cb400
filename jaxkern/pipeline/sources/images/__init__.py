"""Encoded images: fields of them, their headers, their pixels, and sources that have them."""
