"""The factors are on the driver and are broadcast to all blocks. exchange (how they travel) ◄ engine."""
