"""Policy evaluation: GPOPE, DP-LSW, DP-LSL, LSTD and WIS-LSTD."""
