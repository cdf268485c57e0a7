"""Accounting on the events and accountants of Google's dp-accounting."""
