"""Certificates: bounds, held-out counts, draws, and their sentences."""
