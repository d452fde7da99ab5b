"""Factors on the driver, sent to every block as a broadcast: exchange (how they travel) ◄ engine."""
