"""The gate and its accounting: what an auditor of epsilon reads first. `plan.py` says what holds the rest."""
