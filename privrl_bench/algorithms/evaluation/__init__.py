"""Evaluation of a policy on private users who follow it."""
