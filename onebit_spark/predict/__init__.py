"""Predictions of a fitted model: scores, the best partners, new ratings, questions."""
