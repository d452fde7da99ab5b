"""The user's data: ids, labels and their defects, hashes and coins, files."""
