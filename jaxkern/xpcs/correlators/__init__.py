"""From detector frames or events to correlations: multi-tau g2 and two-time C2."""
