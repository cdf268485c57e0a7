"""Logs of a company, tables with a row for each step, as datasets."""
