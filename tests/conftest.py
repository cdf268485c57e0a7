"""Puts this folder on the import path, so that tests in subfolders can import `helpers` and `my_pkg`."""
