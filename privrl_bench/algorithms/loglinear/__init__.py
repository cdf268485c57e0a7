"""Log-linear DPPG with trust regions in L2 and in KL."""
