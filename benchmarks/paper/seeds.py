"""Which draws are used for what.

Reported draws were not used to choose settings or grids of settings.
"""

SETTLED_ON = range(240)  # used when the grids were chosen
FIRST_REPORTED = 1_000
TUNING = (1_000_000, 1_000_001)  # used to choose the settings within the grids
