"""From overrides to a checked `RunConfig`: the rules that need mechanisms, samplers, users and environments."""
