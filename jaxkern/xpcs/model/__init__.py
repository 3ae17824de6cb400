"""The model of two-time correlations: phases, g2, residuals, normal equations, likelihood."""
