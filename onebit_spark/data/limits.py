"""What a rating can hold."""

# A code holds the column's position and the label bit in one signed 32-bit integer
MAX_COLUMNS = 2**30
LARGEST_WEIGHT = 1e30  # sums over the ratings of a row stay finite in float32
ZERO_WEIGHT = 2.0**-150  # float32 rounds weights up to this to 0
