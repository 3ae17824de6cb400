"""Fits of one-time correlations g2(tau)."""
