"""The report of a fit and the map of its positions, as pages."""
