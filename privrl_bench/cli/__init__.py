"""Command lines: `privrl-bench` trains, `privrl` has the rest."""
