"""Collectors: where the users of a round come from."""
