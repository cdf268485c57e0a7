"""Search for hyperparameters inside the guarantee (`privrl tune`)."""
