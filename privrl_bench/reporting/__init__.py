"""Run folders in, statistics, tables and pictures out."""
