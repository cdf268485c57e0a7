"""Trying to break the guarantee: a bit-for-bit leak test, and empirical lower bounds on epsilon."""
