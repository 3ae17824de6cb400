"""Nodes whose batches depend on those before."""
