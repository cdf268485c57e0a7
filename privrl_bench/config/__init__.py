"""The typed configuration of a run: schema, checks, identity, composition by Hydra."""
