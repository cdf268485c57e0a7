"""Log-linear DPPG with trust regions in the L2 norm and in KL divergence."""
