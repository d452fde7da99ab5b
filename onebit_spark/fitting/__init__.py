"""What a fit is asked for, what it leaves, and how it is continued."""
