"""Which draws are for what: no draw that is reported has had a say in a setting, or in the grids of settings."""

SETTLED_ON = range(240)  # looked at while the grids were chosen
FIRST_REPORTED = 1_000
TUNING = (1_000_000, 1_000_001)  # on which the settings are chosen within the grids
