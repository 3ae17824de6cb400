"""Chains: crops, resizes, values and erasures that are folded into the plan of one call."""
