"""Generators of the pages of results: tables and figures of README.md and docs/, from outputs/paper."""
