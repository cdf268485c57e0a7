"""Statistics, tables and figures from run folders."""
